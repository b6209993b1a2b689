"""`electra bench`: its output, options and old names."""

import json
import re


def test_pretrain(electra, refused, data_folder, tmp_path):
    sizes = ("model.hidden=32", "model.embedding=16", "data.seq_length=32", "data.batch_size=8")
    command = ("bench", "pretrain", "toy", *sizes, "train.device=cpu", "--steps", 9)
    several = ("--peer-steps", 4, "--batches", "4,8", "--json")
    code, out, _ = electra(*command, "--data", data_folder, *several)
    assert code == 0
    found = json.loads(out)
    assert set(found) == {"4", "8"}
    assert all(set(both) == {"electra", "transformers"} for both in found.values())
    code, out, _ = electra(*command, "--data", data_folder, "--peer-steps", 4)
    assert code == 0
    assert "times the peer" in out
    assert "data.batch_size" in refused(*command, "--data", data_folder, "--batches", "4,many")
    assert str(tmp_path / "none") in refused(*command, "--data", tmp_path / "none")


def test_estimate(electra, refused, data_folder):
    sizes = ("model.hidden=32", "model.embedding=16", "data.seq_length=32", "data.batch_size=8")
    command = ("bench", "estimate", "toy", *sizes, "train.device=cpu", "--data", data_folder)
    code, out, err = electra(*command, "--for", "1s")
    assert code == 0
    assert re.search(r"4,000 steps would take (\d+ min|\d+ s)\.\n$", out)
    assert "The model is in" not in out + err
    code, out, _ = electra(*command, "--stretch", "1s", "--json")
    assert json.loads(out)["total_steps"] == 4000
    assert "is not a time" in refused(*command, "--for", "100steps")
    old = ("bench", "whole", *command[2:])
    assert "is not a time" in refused(*old, "--stretch", "100steps")  # the old name still works
