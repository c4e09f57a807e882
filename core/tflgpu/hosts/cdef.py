"""TFLite's C interface for delegates, as cffi takes it: the structs of `common.h`.

These are LiteRT's in memory, in the order and types of its public header, which has only grown at
the end since TensorFlow 2.5. No library is opened: LiteRT offers its services to a delegate as
function pointers in `TfLiteContext`. `layout` compares this with what the running LiteRT does.

What stands behind a pointer that nothing here follows is ``void*``.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import cffi

from tflgpu.hosts.params import declarations

_COMMON = """
typedef struct { int size; int data[]; } TfLiteIntArray;
typedef struct { int size; float data[]; } TfLiteFloatArray;

typedef struct {
  TfLiteFloatArray* scale;
  TfLiteIntArray* zero_point;
  int32_t quantized_dimension;
} TfLiteAffineQuantization;

typedef struct TfLiteTensor {
  int type;
  void* data;
  TfLiteIntArray* dims;
  struct { float scale; int32_t zero_point; } params;
  int allocation_type;
  size_t bytes;
  void* allocation;
  char* name;
  void* delegate;
  int buffer_handle;
  bool data_is_stale;
  bool is_variable;
  struct { int type; void* params; } quantization;
  void* sparsity;
  TfLiteIntArray* dims_signature;
} TfLiteTensor;

typedef struct TfLiteNode {
  TfLiteIntArray* inputs;
  TfLiteIntArray* outputs;
  TfLiteIntArray* intermediates;
  TfLiteIntArray* temporaries;
  void* user_data;
  void* builtin_data;
  void* custom_initial_data;
  int custom_initial_data_size;
  void* delegate;
  bool might_have_side_effect;
} TfLiteNode;

typedef struct TfLiteContext TfLiteContext;
typedef struct TfLiteDelegate TfLiteDelegate;

typedef struct {
  void* delegate;
  TfLiteIntArray* nodes_to_replace;
  TfLiteIntArray* input_tensors;
  TfLiteIntArray* output_tensors;
} TfLiteDelegateParams;

/* Passed by value: the zeros at the end stand for what a newer LiteRT may read there. */
typedef struct {
  void* (*init)(TfLiteContext*, char*, size_t);
  void (*free)(TfLiteContext*, void*);
  int (*prepare)(TfLiteContext*, TfLiteNode*);
  int (*invoke)(TfLiteContext*, TfLiteNode*);
  void* profiling_string;
  int32_t builtin_code;
  char* custom_name;
  int version;
  void* registration_external;
  void* async_kernel;
  uint64_t inplace_operator;
  void* reserved[8];
} TfLiteRegistration;

struct TfLiteContext {
  size_t tensors_size;
  int (*GetExecutionPlan)(TfLiteContext*, TfLiteIntArray**);
  TfLiteTensor* tensors;
  void* impl_;
  int (*ResizeTensor)(TfLiteContext*, TfLiteTensor*, TfLiteIntArray*);
  void (*ReportError)(TfLiteContext*, char*, ...);
  void* AddTensors;
  int (*GetNodeAndRegistration)(TfLiteContext*, int, TfLiteNode**, TfLiteRegistration**);
  int (*ReplaceNodeSubsetsWithDelegateKernels)(
      TfLiteContext*, TfLiteRegistration, TfLiteIntArray*, TfLiteDelegate*);
  int recommended_num_threads;
  void* GetExternalContext;
  void* SetExternalContext;
  bool allow_fp32_relax_to_fp16;
  void* profiler;
  void* AllocatePersistentBuffer;
  void* AllocateBufferForEval;
  void* RequestScratchBufferInArena;
  void* GetScratchBuffer;
  void* ResizeTensorExplicit;
  int (*PreviewDelegatePartitioning)(
      TfLiteContext*, TfLiteIntArray*, TfLiteDelegateParams**, int*);
  void* GetTensor;
  void* GetEvalTensor;
  void* GetModelMetadata;
  void* AcquireSubgraphContext;
  void* ReleaseSubgraphContext;
  TfLiteIntArray* (*TfLiteIntArrayCreate)(int); /* on Windows only */
};

struct TfLiteDelegate {
  void* data_;
  int (*Prepare)(TfLiteContext*, TfLiteDelegate*);
  void* CopyFromBufferHandle;
  void* CopyToBufferHandle;
  void* FreeBufferHandle;
  int64_t flags;
  void* opaque_delegate_builder;
  void* reserved[8];
};
"""

_ALLOCATOR = "void* malloc(size_t);"

OK, ERROR = 0, 1  # TfLiteStatus

# TfLiteAllocationType
MEM_NONE, MMAP_RO, ARENA_RW, ARENA_RW_PERSISTENT, DYNAMIC, PERSISTENT_RO = range(6)

NO_QUANTIZATION, AFFINE_QUANTIZATION = 0, 1  # TfLiteQuantizationType

#: TfLiteDelegateFlags: tensors whose size is only known while the model runs, and inputs that get a
#: new shape, are the delegate's own business.
ALLOW_DYNAMIC_TENSORS = 1


def _parsed() -> Any:
    made = cffi.FFI()
    made.cdef(_COMMON)
    made.cdef(declarations())
    made.cdef(_ALLOCATOR)
    return made


# Made while this module is imported, since types of two of them do not mix: threads wait for
# imports.
_FFI = _parsed()


def ffi() -> Any:
    """The declarations, parsed."""
    return _FFI


@cache
def _c_library() -> Any:
    return ffi().dlopen(None)


def ints(array: Any) -> tuple[int, ...]:
    """A `TfLiteIntArray*` as a tuple; empty for a null pointer."""
    if not array:
        return ()
    size: int = array.size
    return tuple(ffi().unpack(array.data, size)) if size > 0 else ()


def int_array(values: tuple[int, ...]) -> Any:
    """A `TfLiteIntArray*` that lives as long as the object; LiteRT may read but not keep it."""
    return ffi().new("TfLiteIntArray*", {"size": len(values), "data": list(values)})


def resize(context: Any, tensor: Any, shape: tuple[int, ...]) -> bool:
    """Give a tensor another shape; whether LiteRT could. Its memory follows, at once where it is
    dynamic."""
    # LiteRT frees the new shape, by the allocator that it shares with everything but on Windows.
    if sys.platform == "win32":
        sizes = context.TfLiteIntArrayCreate(len(shape))
    else:
        room = ffi().sizeof("TfLiteIntArray") + len(shape) * ffi().sizeof("int")
        sizes = ffi().cast("TfLiteIntArray*", _c_library().malloc(room))
    if not sizes:
        return False
    sizes.size = len(shape)
    for axis, size in enumerate(shape):
        sizes.data[axis] = size
    done: int = context.ResizeTensor(context, ffi().addressof(tensor), sizes)
    return done == OK
