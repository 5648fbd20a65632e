"""`@tool`: what the model is told, how a call runs, and what it may do to us."""

import functools
import subprocess
import sys
import threading
from contextvars import ContextVar

import anyio
import pytest

from streamagent.calls import Output, ToolContext
from streamagent.errors import ConfigError, InvalidArguments, ToolError
from streamagent.tools.function import TIMEOUT, FunctionTool, tool

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
colour = ContextVar("colour", default="none")


def make_context():
    return ToolContext(session="s", call_id="c", idempotency_key="k")


async def call(a_tool, **arguments):
    return await a_tool.run(arguments, make_context())


@tool
def stock(product: str, limit: int = 10) -> str:
    """Count a product.

    More about it.

    Args:
        product: Its name.
    """
    return f"{product}: {limit}"


@tool(name="price-of", description="Price.", timeout=None)
async def price(product: str) -> int:
    """Say the price."""
    return len(product)


class Shop:
    """A shop."""

    def __init__(self, units):
        self.units = units

    @tool(timeout=5)
    async def count(self, product: str) -> str:
        """Count in this shop."""
        return f"{self.units} {product}"

    @tool
    @staticmethod
    def hours(day: str) -> str:
        """Say when it is open."""
        return f"{day}: always"

    fixed = tool(functools.partial(lambda product: f"fixed {product}"), name="fixed")

    def plain(self, product: str) -> str:
        """Count plainly."""
        return f"{self.units} {product}"

    async def __call__(self, product: str) -> str:
        """Call the shop."""
        return f"called for {product}"


def test_the_model_is_told_what_the_function_says():
    """Name, first paragraph, parameters."""
    assert stock.spec.name == "stock"
    assert stock.spec.description == "Count a product."
    assert stock.spec.parameters["properties"]["product"] == {"type": "string", "description": "Its name."}
    assert stock.timeout == TIMEOUT


def test_options_go_before_the_function():
    """What is given by hand wins."""
    assert (price.spec.name, price.spec.description, price.timeout) == ("price-of", "Price.", None)


def test_the_schema_is_made_once():
    """It is derived at first use, and kept."""
    assert stock.spec.parameters is stock.spec.parameters


def test_a_tool_is_still_the_function():
    """It can be called, and looks the same."""
    assert stock("mug", limit=3) == "mug: 3"
    assert stock.__name__ == "stock"
    assert stock.__doc__.startswith("Count a product.")
    assert repr(stock) == "tool('stock')"


@pytest.mark.anyio
async def test_sync_and_async_functions_run_with_converted_arguments():
    """A call gives what the function returns."""
    assert await call(stock, product="mug", limit="3") == "mug: 3"
    assert await call(price, product="mug") == 3
    assert await price("blue") == 4


@pytest.mark.anyio
async def test_tools_of_a_class_are_bound_to_the_object():
    """As methods are; through the class they are the tool itself."""
    shop = Shop(3)
    assert await call(shop.count, product="mugs") == "3 mugs"
    assert await shop.count("mugs") == "3 mugs"
    assert list(shop.count.spec.parameters["properties"]) == ["product"]
    assert (shop.count.spec.description, shop.count.timeout) == ("Count in this shop.", 5)
    assert await call(shop.hours, day="Monday") == "Monday: always"
    assert await call(shop.fixed, product="mug") == "fixed mug"
    assert isinstance(Shop.count, FunctionTool)


@pytest.mark.anyio
async def test_methods_partials_and_callable_objects_are_functions():
    """Whatever can be called by name."""
    assert await call(tool(Shop(3).plain), product="mugs") == "3 mugs"
    assert await call(tool(Shop(3)), product="mug") == "called for mug"
    assert tool(Shop(3)).spec.name == "Shop"
    partial = tool(functools.partial(stock, limit=1))
    assert await call(partial, product="mug") == "mug: 1"
    assert await call(tool(functools.partial(Shop(3), product="cup"))) == "called for cup"


@pytest.mark.anyio
async def test_what_a_partial_has_set_cannot_be_changed():
    """Not even where a function takes any name."""

    def function(key="", **rest):
        return key, rest

    bound = tool(functools.partial(function, key="secret"))
    assert await call(bound, key="stolen", a=1) == ("secret", {"a": 1})


@pytest.mark.anyio
async def test_a_sync_function_that_returns_an_awaitable_is_awaited():
    """As a wrapper around an async function does."""
    wrapped = tool(lambda product: price(product), name="wrapped")
    assert await call(wrapped, product="mug") == 3


@pytest.mark.anyio
async def test_the_context_is_given_by_type():
    """Its parameter is hidden and cannot be given by the model."""

    @tool
    def who(at: ToolContext, name: str):
        return at.session, name

    assert list(who.spec.parameters["properties"]) == ["name"]
    assert await call(who, name="n") == ("s", "n")
    with pytest.raises(InvalidArguments, match="at: no such argument"):
        await call(who, name="n", at={})


@pytest.mark.anyio
async def test_wrong_arguments_do_not_reach_the_function():
    """The error is one that the model can read."""

    @tool
    def never(a: int):
        raise AssertionError

    with pytest.raises(InvalidArguments, match="- a: Input should be a valid integer"):
        await call(never, a="x")


@pytest.mark.anyio
async def test_parameters_by_hand_are_checked_as_they_are():
    """They replace the signature's."""
    by_hand = tool(lambda a: a + 1, name="inc", parameters=SCHEMA)
    assert by_hand.spec.parameters is SCHEMA
    assert await call(by_hand, a=1) == 2
    with pytest.raises(InvalidArguments, match="'1' is not of type 'integer'"):
        await call(by_hand, a="1")


@pytest.mark.anyio
async def test_parameters_by_hand_fit_a_function_that_takes_any_name():
    """Then the schema alone judges names."""
    by_hand = tool(lambda **given: given, name="any", parameters=SCHEMA)
    assert await call(by_hand, a=1, b=2) == {"a": 1, "b": 2}


def test_parameters_that_the_function_does_not_take_are_refused():
    """Such a call could never succeed."""
    with pytest.raises(ConfigError, match="tool 'f': the function does not take a"):
        _ = tool(lambda b: b, name="f", parameters=SCHEMA).spec


def test_an_error_of_the_schema_names_the_tool():
    """There may be many tools."""
    with pytest.raises(ConfigError, match=r"tool 'f': .*JSON cannot give"):
        _ = tool(make_opaque()).spec


def make_opaque():
    def f(a): ...

    f.__annotations__["a"] = threading.Thread
    return f


@pytest.mark.parametrize("parameters", [{}, {"type": "array"}])
def test_parameters_by_hand_are_an_objects(parameters):
    """Refused when the tool is made."""
    with pytest.raises(ConfigError, match="type 'object'"):
        tool(stock, parameters=parameters)


def test_a_function_that_cannot_be_called_by_name_is_refused():
    """When the tool is made."""
    with pytest.raises(ConfigError, match=r"\*rest"):
        tool(lambda *rest: rest, name="f")


@pytest.mark.parametrize("name", ["a", "A-b_9", "x" * 64])
def test_names_that_providers_take(name):
    """Up to 64 letters, digits, `_` and `-`."""
    assert tool(stock, name=name).spec.name == name


@pytest.mark.parametrize(
    ("name", "better"), [("stock of", "stock_of"), ("a.b", "a_b"), ("x" * 65, "x" * 64), ("é", "my_tool"), ("a\n", "a")]
)
def test_names_that_providers_refuse(name, better):
    """The error proposes one."""
    with pytest.raises(ConfigError, match=f"name='{better}'"):
        tool(stock, name=name)


def test_a_lambda_needs_a_name():
    """It has none of its own."""
    with pytest.raises(ConfigError, match="name='lambda'"):
        tool(lambda: 1)


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_timeout_is_positive(timeout):
    """Zero seconds are no time to run."""
    with pytest.raises(ConfigError, match="more than 0 seconds"):
        tool(timeout=timeout)(make_opaque())


@pytest.mark.anyio
async def test_a_sync_function_runs_in_a_thread_with_the_context_variables():
    """The event loop is free, and what was set is seen."""
    colour.set("blue")
    where = tool(lambda: (threading.get_ident(), colour.get()), name="where")
    thread, seen = await call(where)
    assert thread != threading.get_ident()
    assert seen == "blue"


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_an_exception_is_the_callers_to_render(kind):
    """It comes out as it is."""

    def fail():
        raise KeyError("k")

    async def afail():
        raise KeyError("k")

    with pytest.raises(KeyError, match="k"):
        await call(tool(fail if kind == "sync" else afail))


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_tool_cannot_end_the_process(kind):
    """`sys.exit` in a tool is the tool's failure."""

    async def leave():
        sys.exit(3)

    a_tool = tool(lambda: sys.exit(3), name="leave") if kind == "sync" else tool(leave)
    with pytest.raises(ToolError, match="exit code 3"):
        await call(a_tool)


@pytest.mark.anyio
async def test_a_keyboard_interrupt_goes_through():
    """It is the user's, not the tool's."""

    async def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await call(tool(interrupt))


@pytest.mark.anyio
async def test_cancellation_reaches_an_async_tool():
    """And is not swallowed."""
    seen = []

    @tool
    async def wait():
        try:
            await anyio.sleep_forever()
        finally:
            seen.append("cancelled")

    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, wait)
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
    assert scope.cancelled_caught
    assert seen == ["cancelled"]


@pytest.mark.anyio
async def test_the_pieces_of_a_generator_are_joined():
    """Text as it is, other values as lines of JSON."""

    def pieces():
        yield "a"
        yield "b\n"
        yield {"c": 1}

    assert await call(tool(pieces)) == Output('ab\n{"c":1}\n')


@pytest.mark.anyio
async def test_an_async_generator_is_handed_on_to_be_streamed():
    @tool
    async def pieces():
        yield "a"
        yield {"b": 1}

    assert [piece async for piece in await call(pieces)] == ["a", {"b": 1}]


@pytest.mark.anyio
async def test_arguments_are_prepared_before_they_are_validated():
    @tool(prepare_arguments=lambda arguments: {"product": arguments.get("item", "?")})
    def find(product: str) -> str:
        """Find."""
        return product

    assert find.prepare({"item": 7}) == {"product": "7"}


def test_an_unknown_execution_mode_is_refused():
    with pytest.raises(ConfigError, match="execution_mode"):
        tool(name="x", execution_mode="serial")(lambda: 1)


@pytest.mark.anyio
async def test_a_generator_that_fails_keeps_what_it_made():
    """One result: what came, and the error."""

    def pieces():
        yield "begun"
        raise ValueError("broke")

    output = await call(tool(pieces))
    assert output == Output("begun\nValueError: broke", is_error=True)


@pytest.mark.anyio
async def test_a_huge_generator_is_capped_as_it_goes():
    """100 MB come through; head, tail and the true size are kept."""

    @tool
    def flood():
        piece = "x" * 1_000_000
        for _ in range(100):
            yield piece

    output = await call(flood)
    assert output.details["truncated"]["bytes"] == 100_000_000
    assert len(output.content) < 60_000


@pytest.mark.anyio
async def test_a_generator_stops_when_nobody_waits():
    """It is asked at each piece, and closed."""
    context = make_context()
    closed = threading.Event()

    @tool
    def endless(at: ToolContext):
        try:
            while True:
                at.cancelled.set()
                yield "x"
        finally:
            closed.set()

    assert await endless.run({}, context) == Output("x")
    assert closed.is_set()


def test_importing_tools_loads_nothing_heavy():
    """Pydantic and jsonschema come with the first schema, not with the module."""
    code = """
import sys
from streamagent.tools.function import tool
from streamagent.tools.read import read_tool
tool(lambda a: a, name="f", parameters={"type": "object"}); read_tool(".")
print(sorted({"pydantic", "jsonschema", "litellm", "aiosqlite", "aiohttp"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
