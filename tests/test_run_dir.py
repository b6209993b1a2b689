"""Which folders may be used for output."""

import pytest

from electra.errors import UserError
from electra.run_dir import PROCESS, check_out_dir


def test_an_output_folder_is_new_or_empty_or_has_one_of_the_marks(tmp_path):
    check_out_dir(tmp_path / "new", "study", "cells", "results.jsonl")
    (tmp_path / PROCESS).write_text("process 1")  # what a run leaves that was refused
    check_out_dir(tmp_path, "study", "cells", "results.jsonl")
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(UserError, match="not empty and holds no study"):
        check_out_dir(tmp_path, "study", "cells", "results.jsonl")
    (tmp_path / "results.jsonl").touch()
    check_out_dir(tmp_path, "study", "cells", "results.jsonl")
    with pytest.raises(UserError, match="not empty and holds no run"):
        check_out_dir(tmp_path, "run")
    with pytest.raises(UserError, match="is a file"):
        check_out_dir(tmp_path / "letter.txt", "study", "cells")
    with pytest.raises(UserError, match=r"letter.txt' is a file"):
        check_out_dir(tmp_path / "letter.txt" / "below", "study", "cells")
