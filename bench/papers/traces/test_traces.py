"""The traces' own properties."""
import pytest

from papers.traces import traces

PARAMETERS = {
    "alexnet": 61_100_840, "bert_base": 109_482_240, "googlenet": 6_624_904,
    "googlenet_aux": 13_004_888, "inception_v3": 23_834_568, "inception_v3_aux": 27_161_264,
    "lenet5": 61_706, "lenet_caffe": 431_080, "mobilenet_v1": 4_231_976, "resnet50": 25_557_032,
    "resnet152": 60_192_808, "squeezenet1_0": 1_248_424, "vgg16": 138_357_544, "vgg19": 143_667_240}


def test_every_model_has_its_published_parameter_count():
    assert set(traces.models()) == set(PARAMETERS)
    for model, expected in PARAMETERS.items():
        assert sum(tensor.elem_count for tensor in traces.load(model)) == expected, model


def test_a_shape_s_product_is_the_element_count_and_rows_are_in_forward_order():
    for model in traces.models():
        for index, tensor in enumerate(traces.load(model)):
            product = 1
            for dimension in tensor.shape:
                product *= dimension
            assert (tensor.index, tensor.elem_count) == (index, product), (model, tensor)


def test_compute_times_sum_to_the_total_and_backward_takes_two_thirds():
    for model in traces.models():
        forward, backward = traces.compute_times(traces.load(model), 3.0)
        assert sum(forward) == pytest.approx(1.0)
        assert sum(backward) == pytest.approx(2.0)


def test_an_unknown_model_is_refused_by_name_with_the_known_ones():
    with pytest.raises(traces.TraceError, match="'resnet18'.*resnet50"):
        traces.load("resnet18")
