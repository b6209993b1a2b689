"""The order of a layer's parameters, which Python and CUDA share."""

from electra.kernels.layer_params import NUM_CAST, PARAM_NAMES, LayerParams
from electra.models.encoder import EncoderConfig, Layer

LAYER = Layer(EncoderConfig(layers=1, hidden=128, heads=2, embedding=64, vocab_size=30))


def test_every_parameter_of_a_layer_has_a_place():
    assert sorted(PARAM_NAMES) == sorted(name for name, _ in LAYER.named_parameters())
    assert len(PARAM_NAMES) == len(LayerParams._fields)


def test_names_and_fields_stand_for_the_same_parameter():
    """`up_proj.bias` is `b_up`, `output_norm.weight` is `norm2_weight`."""
    layers = {"qkv": "qkv", "out_proj": "out", "up_proj": "up", "down_proj": "down"}
    norms = {"attention_norm": "norm1", "output_norm": "norm2"}
    for name, field in zip(PARAM_NAMES, LayerParams._fields, strict=True):
        layer, _, part = name.partition(".")
        wanted = f"{part[0]}_{layers[layer]}" if layer in layers else f"{norms[layer]}_{part}"
        assert field == wanted


def test_all_weights_of_gemms_are_cast():
    parameters = dict(LAYER.named_parameters())
    matrices = {name for name in PARAM_NAMES if parameters[name].ndim == 2}
    assert matrices < set(PARAM_NAMES[:NUM_CAST])
    assert set(PARAM_NAMES[:NUM_CAST]) - matrices == {"qkv.bias"}
