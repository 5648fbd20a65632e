import pytest

pytest.register_assert_rewrite("tests.stores.contract", "tests.stores.leases", "tests.stores.forks", "tests.stores.odd")
