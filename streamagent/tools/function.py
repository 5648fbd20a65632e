"""`@tool`: a Python function that a model may call."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, Generic, ParamSpec, TypeVar, overload

from streamagent.calls import ExecutionMode, Reconcile, RequiresApproval, ToolCall, ToolContext, ToolSpec
from streamagent.errors import ConfigError, ToolError

from .docstring import parse_docstring
from .json_schema import check_object, from_schema
from .plain import call_in_thread
from .schema import Parameters, Signature, from_signature, read_signature

P = ParamSpec("P")
Prepare = Callable[[Mapping[str, Any]], Mapping[str, Any]]
R = TypeVar("R")

TIMEOUT = 60.0  # seconds
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # what all providers take


class _Valid(dict[str, Any]):
    """Arguments that were validated."""


class FunctionTool(Generic[P, R]):
    """A function as a `Tool`, which can still be called as the function.

    A synchronous function runs in a worker thread, where a generator's pieces are joined, with bounded memory. What an
    async generator yields is streamed.

    Args:
        function: What to call; a parameter annotated `ToolContext` gets the context and is hidden from the model.
        name: What the model calls it by; the function's name by default.
        description: What it does; the first paragraph of the docstring by default.
        parameters: JSON Schema of the arguments; derived from the annotations and the docstring by default.
        timeout: Longest run of one call, in seconds; `None` for no limit.
        prepare_arguments: Mends what a model sent, before it is validated: arguments in, arguments out.
        execution_mode: `sequential` lets no other call of the same answer run at the same time.
        requires_approval: Somebody has to approve a call before it runs: true, or a function of its validated
            arguments that says so; one that raises lets no call run.
        retry_safe: To run a call twice does no harm: it only reads, or it heeds `context.idempotency_key`. Then a call
            that a crash interrupted is run again, and a call may begin before the answer that makes it is complete.
        reconcile: Of a call that is not safe to run again and was interrupted by a crash: says what came of it, as the
            function would have returned it, or `None` when it cannot tell. It has the tool's timeout; a synchronous
            function runs in a thread.

    Raises:
        ConfigError: The name is not one that providers take, the timeout is not positive, the parameters are not an
            object's, the function cannot be called by name, or `reconcile` is given for what is safe to run again.
    """

    def __init__(  # noqa: PLR0913 - the options of a tool, all by keyword
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        timeout: float | None = TIMEOUT,
        prepare_arguments: Prepare | None = None,
        execution_mode: ExecutionMode = "parallel",
        requires_approval: RequiresApproval = False,
        retry_safe: bool = False,
        reconcile: Reconcile | None = None,
    ) -> None:
        inner = function.func if isinstance(function, functools.partial) else function
        self.name = _checked_name(name or str(getattr(inner, "__name__", type(inner).__name__)))
        if timeout is not None and not timeout > 0:
            raise ConfigError(f"tool {self.name!r}: a timeout is more than 0 seconds, or None; not {timeout}")
        if parameters is not None:
            check_object(parameters)
        if execution_mode not in ("parallel", "sequential"):
            raise ConfigError(
                f"tool {self.name!r}: execution_mode is 'parallel' or 'sequential', not {execution_mode!r}"
            )
        if not (isinstance(requires_approval, bool) or callable(requires_approval)):
            raise ConfigError(
                f"tool {self.name!r}: requires_approval is true, false or a function, not {requires_approval!r:.80}"
            )
        asks = reconcile is not None
        if not isinstance(retry_safe, bool) or (asks and (retry_safe or not callable(reconcile))):
            raise ConfigError(
                f"tool {self.name!r}: retry_safe is true or false, and reconcile a function of a tool that is not; "
                f"not {retry_safe!r:.80} and {reconcile!r:.80}"
            )
        read_signature(function, evaluate=False)
        self.timeout = timeout
        self.execution_mode: ExecutionMode = execution_mode
        self.requires_approval = requires_approval
        self.retry_safe = retry_safe
        self.reconcile = reconcile if reconcile is None or _is_async(reconcile) else _threaded(reconcile)
        self._prepare = prepare_arguments
        self._function: Callable[..., R] = function
        self._schema = parameters
        summary, self._descriptions = parse_docstring(inspect.getdoc(inner))
        self._description = summary if description is None else description
        self._is_async = _is_async(function)
        functools.update_wrapper(self, inner, updated=())
        self.__wrapped__ = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself."""
        return self._function(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> FunctionTool[..., R]:
        """Bind a tool that was defined in a class."""
        if instance is None or not hasattr(self._function, "__get__"):
            return self
        return FunctionTool(
            self._function.__get__(instance, owner),
            name=self.name,
            description=self._description,
            parameters=self._schema,
            timeout=self.timeout,
            prepare_arguments=self._prepare,
            execution_mode=self.execution_mode,
            requires_approval=self.requires_approval,
            retry_safe=self.retry_safe,
            reconcile=self.reconcile,
        )

    def __repr__(self) -> str:
        return f"tool({self.name!r})"

    @property
    def spec(self) -> ToolSpec:
        """What the model is told.

        Raises:
            ConfigError: The parameters have no JSON Schema, or do not fit the function.
        """
        return ToolSpec(name=self.name, description=self._description, parameters=self._parameters.schema)

    def prepare(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Mend and validate the arguments of a call.

        Raises:
            InvalidArguments: They do not fit; the text tells the model what to mend.
        """
        return _Valid(self._parameters.validate(arguments if self._prepare is None else self._prepare(arguments)))

    async def run(self, arguments: Mapping[str, Any], context: ToolContext) -> Any:
        """Check the arguments, call the function and return its result.

        Raises:
            InvalidArguments: The arguments do not fit; the text tells the model what to mend.
            ToolError: The function raised it or tried to exit, or too many abandoned threads still run.
            Exception: Whatever else the function raises.
        """
        # What was prepared is not validated again: a validator may change a value each time.
        valid = arguments if isinstance(arguments, _Valid) else self._parameters.validate(arguments)
        keywords = {**valid, **self._signature.preset}
        if self._signature.context:
            keywords[self._signature.context] = context
        call = functools.partial(self._function, **keywords)
        try:
            result: Any
            if self._is_async:
                result = call()
            else:
                result = await call_in_thread(call, context.cancelled)
            if inspect.isawaitable(result):
                result = await result
        except SystemExit as error:
            raise ToolError(f"the tool tried to end the process with exit code {error.code!r}") from error
        return result

    @functools.cached_property
    def _signature(self) -> Signature:
        return read_signature(self._function)

    @functools.cached_property
    def _parameters(self) -> Parameters:
        try:
            if self._schema is None:
                return from_signature(self._signature, self._descriptions)
            _check_taken(self._schema, self._signature)
            return from_schema(self._schema, any_name=self._signature.extra is not None)
        except ConfigError as error:
            raise ConfigError(f"tool {self.name!r}: {error}") from error


@overload
def tool(
    function: Callable[P, R],
    /,
    *,
    name: str | None = ...,
    description: str | None = ...,
    parameters: Mapping[str, Any] | None = ...,
    timeout: float | None = ...,
    prepare_arguments: Prepare | None = ...,
    execution_mode: ExecutionMode = ...,
    requires_approval: RequiresApproval = ...,
    retry_safe: bool = ...,
    reconcile: Reconcile | None = ...,
) -> FunctionTool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = ...,
    description: str | None = ...,
    parameters: Mapping[str, Any] | None = ...,
    timeout: float | None = ...,
    prepare_arguments: Prepare | None = ...,
    execution_mode: ExecutionMode = ...,
    requires_approval: RequiresApproval = ...,
    retry_safe: bool = ...,
    reconcile: Reconcile | None = ...,
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...


def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a function a tool, as `@tool` or `@tool(timeout=5)`.

    Args:
        function: Any callable: sync, async or a generator; a function, method, `functools.partial` or object.
        options: As `FunctionTool`.

    Returns:
        The `FunctionTool`; without a function, a decorator that makes one.

    Raises:
        ConfigError: As `FunctionTool`.
    """
    if function is None:
        return functools.partial(FunctionTool, **options)
    return FunctionTool(function, **options)


def _checked_name(name: str) -> str:
    if _NAME.fullmatch(name):
        return name
    better = re.sub(r"[^a-zA-Z0-9_-]+", "_", name).strip("_")[:64] or "my_tool"
    raise ConfigError(
        f"{name!r} is no tool name: providers take 1 to 64 of a-z, A-Z, 0-9, _ and -; give one with name={better!r}"
    )


def _check_taken(schema: Mapping[str, Any], signature: Signature) -> None:
    strange = schema.get("properties", {}).keys() - signature.named
    if strange and not signature.extra:
        raise ConfigError(f"the function does not take {', '.join(sorted(strange))}")


def _is_async(function: Callable[..., Any]) -> bool:
    """Tell whether a call returns at once and the work is in awaiting what it returns."""
    inner = function.func if isinstance(function, functools.partial) else function
    candidates = (inner, getattr(inner, "__call__", None))  # noqa: B004 - the method of a callable object is looked at
    return any(inspect.iscoroutinefunction(item) or inspect.isasyncgenfunction(item) for item in candidates)


def _threaded(reconcile: Reconcile) -> Reconcile:
    """Let a plain function be asked in a worker thread, as a tool is run there."""

    async def ask(call: ToolCall) -> Any:
        found = await call_in_thread(functools.partial(reconcile, call), call.context.cancelled)
        return await found if inspect.isawaitable(found) else found

    return ask
