import pytest

pytest.register_assert_rewrite("streamagent.testing.contract")
