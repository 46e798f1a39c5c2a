"""Lets the helpers of these tests explain their failed assertions as tests do."""

import pytest

pytest.register_assert_rewrite("tests.chaos.stage", "tests.chaos.received", "tests.chaos.client")
