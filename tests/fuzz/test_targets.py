"""Nothing but `UserError` escapes from the readers, whatever a file holds."""

import os
import sys

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from tests.fuzz.mutations import hostile
from tests.fuzz.seeds import all_seeds
from tests.fuzz.targets import TARGETS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limits are those of Linux")
SEEDS = all_seeds()
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "60"))


@pytest.mark.parametrize("name", TARGETS)
def test_a_valid_file_is_read(name, tmp_path):
    target = TARGETS[name]
    target.prepare(tmp_path)
    for data in SEEDS[name]:
        target.run(tmp_path, data)


@pytest.mark.parametrize("name", TARGETS)
def test_only_user_errors_escape(name, tmp_path):
    from tests.fuzz.limits import bounded

    target = TARGETS[name]
    target.prepare(tmp_path)

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(SEEDS[name]).flatmap(hostile) | st.binary(max_size=64))
    def check(data: bytes) -> None:
        note(f"{len(data)} bytes: {data[:2000]!r}")
        with bounded():
            target.check(tmp_path, data)

    check()
