"""The options of builtin operators as LiteRT keeps them: C structs, by the schema's field names.

Each struct is that of TFLite's public `builtin_op_data.h`, whose members are only ever added at the
end, up to the last member that is read here. An operator whose options are in no struct listed here
stays with LiteRT. `tests/hosts/test_params.py` holds every one against what the file reader reads
of the same model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from tflgpu.ir.dtypes import DType
from tflgpu.tflite.schema import layout, options_of

# TfLiteType to TensorType: those whose codes differ. The schema has no code for "no type".
_TYPES = {0: 0, 1: 0, 10: 1, **{code: code - 1 for code in range(11, 22)}}

Read = Callable[[Any], Any]


def tensor_type(code: int) -> int:
    """The schema's TensorType for a TfLiteType."""
    return _TYPES.get(code, code)


def element_type(code: int) -> DType | None:
    """The DType for a TfLiteType; None where there is none."""
    try:
        return DType.from_tflite(tensor_type(code)) if code else None
    except KeyError:
        return None


def _same(name: str) -> Read:
    return lambda data: getattr(data, name)


def _less_one(name: str) -> Read:
    # In these enumerations C has "unknown" at 0, and the schema's values after it.
    return lambda data: getattr(data, name) - 1


def _type(name: str) -> Read:
    return lambda data: tensor_type(getattr(data, name))


def _list(name: str, count: str) -> Read:
    return lambda data: tuple(getattr(data, name)[0 : getattr(data, count)])


@attrs.frozen
class Struct:
    """A struct: its members as C, and how each of the schema's fields is read from them."""

    members: str
    fields: Mapping[str, Read]


def _struct(members: str, **fields: Read | str) -> Struct:
    """Fields that are only renamed are given by the member's name."""
    return Struct(members, {k: _same(v) if isinstance(v, str) else v for k, v in fields.items()})


_ACTIVATION = {"fused_activation_function": _same("activation")}
_ACTIVATED = Struct("int activation;", _ACTIVATION)
_SCALED_SUM = Struct(
    "int activation; bool pot_scale_int16;",
    {**_ACTIVATION, "pot_scale_int16": _same("pot_scale_int16")},
)
_STRIDES = {
    "padding": _less_one("padding"),
    "stride_w": _same("stride_width"),
    "stride_h": _same("stride_height"),
}
_DILATIONS = {
    "dilation_w_factor": _same("dilation_width_factor"),
    "dilation_h_factor": _same("dilation_height_factor"),
}
_RESIZE = _struct(
    "bool align_corners; bool half_pixel_centers;",
    align_corners="align_corners",
    half_pixel_centers="half_pixel_centers",
)
_BLOCK = _struct("int block_size;", block_size="block_size")
_SPLITS = _struct("int num_splits;", num_splits="num_splits")
_FOUND_INDEX = _struct("int output_type;", output_type=_type("output_type"))

#: By the schema's table of options, which several operators may share. Those of operators that have
#: no `OpDef` yet are here as well, so that a new one needs no edit.
STRUCTS: Mapping[str, Struct] = {
    "AddOptions": _SCALED_SUM,
    "ArgMaxOptions": _FOUND_INDEX,
    "ArgMinOptions": _FOUND_INDEX,
    "BatchMatMulOptions": _struct(
        "bool adj_x; bool adj_y; bool asymmetric_quantize_inputs;",
        adj_x="adj_x",
        adj_y="adj_y",
        asymmetric_quantize_inputs="asymmetric_quantize_inputs",
    ),
    "BidirectionalSequenceLSTMOptions": _struct(
        """int activation; float cell_clip; float proj_clip; bool merge_outputs; bool time_major;
        bool asymmetric_quantize_inputs;""",
        fused_activation_function="activation",
        cell_clip="cell_clip",
        proj_clip="proj_clip",
        merge_outputs="merge_outputs",
        time_major="time_major",
        asymmetric_quantize_inputs="asymmetric_quantize_inputs",
    ),
    "BidirectionalSequenceRNNOptions": _struct(
        """bool time_major; int activation; bool merge_outputs; bool asymmetric_quantize_inputs;""",
        time_major="time_major",
        fused_activation_function="activation",
        merge_outputs="merge_outputs",
        asymmetric_quantize_inputs="asymmetric_quantize_inputs",
    ),
    "BucketizeOptions": _struct(
        "int num_boundaries; float* boundaries;", boundaries=_list("boundaries", "num_boundaries")
    ),
    "CastOptions": _struct(
        "int in_data_type; int out_data_type;",
        in_data_type=_type("in_data_type"),
        out_data_type=_type("out_data_type"),
    ),
    "ConcatenationOptions": Struct(
        "int axis; int activation;", {"axis": _same("axis"), **_ACTIVATION}
    ),
    "Conv2DOptions": Struct(
        """int padding; int stride_width; int stride_height; int activation;
        int dilation_width_factor; int dilation_height_factor; int quantized_bias_type;""",
        {
            **_STRIDES,
            **_ACTIVATION,
            **_DILATIONS,
            "quantized_bias_type": _type("quantized_bias_type"),
        },
    ),
    "Conv3DOptions": Struct(
        """int padding; int stride_width; int stride_height; int stride_depth;
        int dilation_width_factor; int dilation_height_factor; int dilation_depth_factor;
        int activation;""",
        {
            **_STRIDES,
            "stride_d": _same("stride_depth"),
            **_DILATIONS,
            "dilation_d_factor": _same("dilation_depth_factor"),
            **_ACTIVATION,
        },
    ),
    "CumsumOptions": _struct(
        "bool exclusive; bool reverse;", exclusive="exclusive", reverse="reverse"
    ),
    "DepthwiseConv2DOptions": Struct(
        """int padding; int stride_width; int stride_height; int depth_multiplier; int activation;
        int dilation_width_factor; int dilation_height_factor;""",
        {
            **_STRIDES,
            **_ACTIVATION,
            **_DILATIONS,
            "depth_multiplier": _same("depth_multiplier"),
        },
    ),
    "DepthToSpaceOptions": _BLOCK,
    "DivOptions": _ACTIVATED,
    "FakeQuantOptions": _struct(
        "float min; float max; int num_bits; bool narrow_range;",
        min="min",
        max="max",
        num_bits="num_bits",
        narrow_range="narrow_range",
    ),
    "FullyConnectedOptions": _struct(
        """int activation; int weights_format; bool keep_num_dims;
        bool asymmetric_quantize_inputs; int quantized_bias_type;""",
        fused_activation_function="activation",
        weights_format="weights_format",
        keep_num_dims="keep_num_dims",
        asymmetric_quantize_inputs="asymmetric_quantize_inputs",
        quantized_bias_type=_type("quantized_bias_type"),
    ),
    "GatherOptions": _struct("int axis; int batch_dims;", axis="axis", batch_dims="batch_dims"),
    "GeluOptions": _struct("bool approximate;", approximate="approximate"),
    "L2NormOptions": _ACTIVATED,
    "LeakyReluOptions": _struct("float alpha;", alpha="alpha"),
    "LocalResponseNormalizationOptions": _struct(
        "int radius; float bias; float alpha; float beta;",
        radius="radius",
        bias="bias",
        alpha="alpha",
        beta="beta",
    ),
    "LSTMOptions": _struct(
        """int activation; float cell_clip; float proj_clip; int kernel_type;
        bool asymmetric_quantize_inputs;""",
        fused_activation_function="activation",
        cell_clip="cell_clip",
        proj_clip="proj_clip",
        kernel_type="kernel_type",
        asymmetric_quantize_inputs="asymmetric_quantize_inputs",
    ),
    "Pool2DOptions": Struct(
        """int padding; int stride_width; int stride_height; int filter_width; int filter_height;
        int activation;""",
        {
            **_STRIDES,
            "filter_width": _same("filter_width"),
            "filter_height": _same("filter_height"),
            **_ACTIVATION,
        },
    ),
    "ReducerOptions": _struct("bool keep_dims;", keep_dims="keep_dims"),
    "MirrorPadOptions": _struct("int mode;", mode=_less_one("mode")),
    "LSHProjectionOptions": _struct("int type;", type="type"),
    "EmbeddingLookupSparseOptions": _struct("int combiner;", combiner="combiner"),
    "MulOptions": _ACTIVATED,
    "OneHotOptions": _struct("int axis;", axis="axis"),
    "PackOptions": _struct("int values_count; int axis;", values_count="values_count", axis="axis"),
    "ReshapeOptions": _struct(
        "int32_t shape[8]; int num_dimensions;", new_shape=_list("shape", "num_dimensions")
    ),
    "ResizeBilinearOptions": _RESIZE,
    "ResizeNearestNeighborOptions": _RESIZE,
    "ReverseSequenceOptions": _struct(
        "int seq_dim; int batch_dim;", seq_dim="seq_dim", batch_dim="batch_dim"
    ),
    "RNNOptions": _struct(
        "int activation; bool asymmetric_quantize_inputs;",
        fused_activation_function="activation",
        asymmetric_quantize_inputs="asymmetric_quantize_inputs",
    ),
    "SequenceRNNOptions": _struct(
        "bool time_major; int activation; bool asymmetric_quantize_inputs;",
        time_major="time_major",
        fused_activation_function="activation",
        asymmetric_quantize_inputs="asymmetric_quantize_inputs",
    ),
    "ShapeOptions": _struct("int out_type;", out_type=_type("out_type")),
    "SoftmaxOptions": _struct("float beta;", beta="beta"),
    "SpaceToDepthOptions": _BLOCK,
    "SparseToDenseOptions": _struct("bool validate_indices;", validate_indices="validate_indices"),
    "SplitOptions": _SPLITS,
    "SplitVOptions": _SPLITS,
    "SqueezeOptions": _struct(
        "int32_t squeeze_dims[8]; int num_squeeze_dims;",
        squeeze_dims=_list("squeeze_dims", "num_squeeze_dims"),
    ),
    "StridedSliceOptions": _struct(
        """int begin_mask; int end_mask; int ellipsis_mask; int new_axis_mask;
        int shrink_axis_mask; bool offset;""",
        begin_mask="begin_mask",
        end_mask="end_mask",
        ellipsis_mask="ellipsis_mask",
        new_axis_mask="new_axis_mask",
        shrink_axis_mask="shrink_axis_mask",
        offset="offset",
    ),
    "SubOptions": _SCALED_SUM,
    "SVDFOptions": _struct(
        "int rank; int activation; bool asymmetric_quantize_inputs;",
        rank="rank",
        fused_activation_function="activation",
        asymmetric_quantize_inputs="asymmetric_quantize_inputs",
    ),
    "TransposeConvOptions": Struct(
        """int padding; int stride_width; int stride_height; int activation;
        int quantized_bias_type;""",
        {**_STRIDES, **_ACTIVATION, "quantized_bias_type": _type("quantized_bias_type")},
    ),
    "UnidirectionalSequenceLSTMOptions": _struct(
        """int activation; float cell_clip; float proj_clip; bool time_major;
        bool asymmetric_quantize_inputs; bool diagonal_recurrent_tensors;""",
        fused_activation_function="activation",
        cell_clip="cell_clip",
        proj_clip="proj_clip",
        time_major="time_major",
        asymmetric_quantize_inputs="asymmetric_quantize_inputs",
        diagonal_recurrent_tensors="diagonal_recurrent_tensors",
    ),
    "UniqueOptions": _struct("int index_out_type;", idx_out_type=_type("index_out_type")),
    "UnpackOptions": _struct("int num; int axis;", num="num", axis="axis"),
}


def struct_of(op: str) -> tuple[str, Struct] | None:
    """The name of a builtin operator's struct in `declarations`, and its declaration; None where
    none is known."""
    reference = options_of(op)
    if reference is None or reference.table not in STRUCTS:
        return None
    return _declared(reference.table), STRUCTS[reference.table]


def _declared(table: str) -> str:
    return f"params_{table}"


def declarations() -> str:
    """All structs, as C."""
    made = (f"typedef struct {{ {s.members} }} {_declared(n)};" for n, s in STRUCTS.items())
    return "\n".join(made)


def has_no_options(op: str) -> bool:
    """Whether a builtin operator has no options, so that there is no struct to know."""
    reference = options_of(op)
    return reference is None or not layout(reference.table).fields
