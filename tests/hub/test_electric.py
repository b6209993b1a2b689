"""The mark of Electric in `config.json`."""

import json

from electra.hub.electric import is_electric, mark_electric


def test_the_mark_keeps_the_rest_of_the_file(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "electra", "name": "søren"}), encoding="utf-8")
    assert not is_electric(tmp_path)
    mark_electric(tmp_path)
    assert is_electric(tmp_path)
    config = json.loads(path.read_text(encoding="utf-8"))
    assert (config["model_type"], config["name"]) == ("electra", "søren")
