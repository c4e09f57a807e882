"""The part of SPIR-V that kernels need, and what they may come to compute: opcodes and enumerants,
by the specification's names.

SPIR-V specification 1.3, sections 3.2 to 3.32, the GLSL.std.450 extended instruction set, and
SPV_KHR_cooperative_matrix.
"""

from __future__ import annotations

import enum

MAGIC = 0x07230203
VERSION = 0x00010300
#: No tool of the registry: 0 is what a generator without an entry there puts.
GENERATOR = 0

#: Instructions.
Op = enum.IntEnum("Op", {
    "Name": 5, "Extension": 10, "ExtInstImport": 11, "ExtInst": 12, "MemoryModel": 14,
    "EntryPoint": 15, "ExecutionMode": 16, "Capability": 17, "TypeVoid": 19, "TypeBool": 20,
    "TypeInt": 21, "TypeFloat": 22, "TypeVector": 23, "TypeArray": 28, "TypeRuntimeArray": 29,
    "TypeStruct": 30, "TypePointer": 32, "TypeFunction": 33, "ConstantTrue": 41,
    "ConstantFalse": 42, "Constant": 43, "ConstantComposite": 44, "Function": 54,
    "FunctionEnd": 56, "Variable": 59, "Load": 61, "Store": 62, "AccessChain": 65,
    "ArrayLength": 68, "Decorate": 71, "MemberDecorate": 72, "CompositeConstruct": 80,
    "CompositeExtract": 81, "ConvertFToU": 109,
    "ConvertFToS": 110, "ConvertSToF": 111, "ConvertUToF": 112, "UConvert": 113, "SConvert": 114,
    "FConvert": 115, "Bitcast": 124, "SNegate": 126, "FNegate": 127, "IAdd": 128, "FAdd": 129,
    "ISub": 130, "FSub": 131, "IMul": 132, "FMul": 133, "UDiv": 134, "SDiv": 135, "FDiv": 136,
    "UMod": 137, "MatrixTimesScalar": 143, "Dot": 148, "LogicalEqual": 164, "LogicalNotEqual": 165,
    "LogicalOr": 166, "LogicalAnd": 167, "LogicalNot": 168, "Select": 169, "IEqual": 170,
    "INotEqual": 171, "UGreaterThan": 172, "SGreaterThan": 173, "UGreaterThanEqual": 174,
    "SGreaterThanEqual": 175, "ULessThan": 176, "SLessThan": 177, "ULessThanEqual": 178,
    "SLessThanEqual": 179, "FOrdEqual": 180, "FUnordNotEqual": 183, "FOrdLessThan": 184,
    "FOrdGreaterThan": 186, "FOrdLessThanEqual": 188, "FOrdGreaterThanEqual": 190,
    "ShiftRightLogical": 194, "ShiftRightArithmetic": 195, "ShiftLeftLogical": 196,
    "BitwiseOr": 197, "BitwiseXor": 198, "BitwiseAnd": 199, "ControlBarrier": 224,
    "LoopMerge": 246, "SelectionMerge": 247, "Label": 248, "Branch": 249, "BranchConditional": 250,
    "Return": 253, "Unreachable": 255, "GroupNonUniformShuffleXor": 346,
    "TypeCooperativeMatrixKHR": 4456, "CooperativeMatrixLoadKHR": 4457,
    "SDotKHR": 4450, "CooperativeMatrixStoreKHR": 4458, "CooperativeMatrixMulAddKHR": 4459,
    # What no kernel has yet, so that a new function or node finds its instruction here.
    "VectorExtractDynamic": 77, "VectorInsertDynamic": 78, "VectorShuffle": 79,
    "CompositeInsert": 82, "QuantizeToF16": 116, "SRem": 138, "SMod": 139, "FRem": 140,
    "FMod": 141, "VectorTimesScalar": 142, "IAddCarry": 149, "ISubBorrow": 150,
    "UMulExtended": 151, "SMulExtended": 152, "Any": 154, "All": 155, "IsNan": 156, "IsInf": 157,
    "FUnordEqual": 181, "FOrdNotEqual": 182, "FUnordLessThan": 185, "FUnordGreaterThan": 187,
    "FUnordLessThanEqual": 189, "FUnordGreaterThanEqual": 191, "Not": 200, "BitFieldInsert": 201,
    "BitFieldSExtract": 202, "BitFieldUExtract": 203, "BitReverse": 204, "BitCount": 205,
    "AtomicLoad": 227, "AtomicExchange": 229,
    "AtomicCompareExchange": 230, "AtomicIAdd": 234, "AtomicISub": 235, "AtomicSMin": 236,
    "AtomicUMin": 237, "AtomicSMax": 238, "AtomicUMax": 239, "AtomicAnd": 240, "AtomicOr": 241,
    "AtomicXor": 242, "GroupNonUniformElect": 333, "GroupNonUniformAll": 334,
    "GroupNonUniformAny": 335, "GroupNonUniformBroadcast": 337,
    "GroupNonUniformBroadcastFirst": 338, "GroupNonUniformBallot": 339,
    "GroupNonUniformShuffle": 345, "GroupNonUniformShuffleUp": 347,
    "GroupNonUniformShuffleDown": 348,
})  # fmt: skip
#: Instructions of GLSL.std.450.
Glsl = enum.IntEnum("Glsl", {
    "RoundEven": 2, "Trunc": 3, "FAbs": 4, "SAbs": 5, "FSign": 6, "SSign": 7, "Floor": 8,
    "Ceil": 9, "Pow": 26, "Exp": 27, "Log": 28, "Sqrt": 31, "InverseSqrt": 32, "FMin": 37,
    "UMin": 38, "SMin": 39, "FMax": 40, "UMax": 41, "SMax": 42, "Fma": 50, "NMin": 79, "NMax": 80,
    # As above.
    "Round": 1, "Fract": 10, "Sin": 13, "Cos": 14, "Tan": 15, "Asin": 16, "Acos": 17, "Atan": 18,
    "Sinh": 19, "Cosh": 20, "Tanh": 21, "Asinh": 22, "Acosh": 23, "Atanh": 24, "Atan2": 25,
    "Exp2": 29, "Log2": 30, "FClamp": 43, "UClamp": 44, "SClamp": 45, "FMix": 46, "Step": 48,
    "Ldexp": 53, "PackSnorm4x8": 54, "PackUnorm4x8": 55, "PackHalf2x16": 58, "UnpackHalf2x16": 62,
    "UnpackSnorm4x8": 63, "UnpackUnorm4x8": 64, "FindILsb": 73, "FindSMsb": 74, "FindUMsb": 75,
    "NClamp": 81,
})  # fmt: skip
#: What a module asks of a device.
Capability = enum.IntEnum(
    "Capability",
    {
        "Shader": 1,
        "Float16": 9,
        "GroupNonUniform": 61,
        "GroupNonUniformShuffle": 65,
        "StorageBuffer16BitAccess": 4433,
        "StorageBuffer8BitAccess": 4448,
        "DenormPreserve": 4464,
        "SignedZeroInfNanPreserve": 4466,
        "RoundingModeRTE": 4467,
        "VulkanMemoryModel": 5345,
        "DotProductInput4x8BitPackedKHR": 6018,
        "DotProductKHR": 6019,
        "CooperativeMatrixKHR": 6022,
    },
)
#: Where a variable lives.
StorageClass = enum.IntEnum(
    "StorageClass", {"Input": 1, "Workgroup": 4, "Function": 7, "StorageBuffer": 12}
)
#: Annotations.
Decoration = enum.IntEnum("Decoration", {
    "Block": 2, "ArrayStride": 6, "BuiltIn": 11, "Restrict": 19, "NonWritable": 24,
    "NonReadable": 25, "Binding": 33, "DescriptorSet": 34, "Offset": 35, "FPRoundingMode": 39,
})  # fmt: skip
#: Inputs that every invocation has.
BuiltIn = enum.IntEnum(
    "BuiltIn", {"WorkgroupId": 26, "LocalInvocationId": 27, "GlobalInvocationId": 28}
)
#: Modes of an entry point.
ExecutionMode = enum.IntEnum(
    "ExecutionMode",
    {
        "LocalSize": 17,
        "DenormPreserve": 4459,
        "SignedZeroInfNanPreserve": 4461,
        "RoundingModeRTE": 4462,
    },
)
#: How pointers look.
AddressingModel = enum.IntEnum("AddressingModel", {"Logical": 0})
#: Rules of memory.
MemoryModel = enum.IntEnum("MemoryModel", {"GLSL450": 1, "Vulkan": 3})
#: Kinds of entry points.
ExecutionModel = enum.IntEnum("ExecutionModel", {"GLCompute": 5})
#: How a conversion rounds.
RoundingMode = enum.IntEnum("RoundingMode", {"RTE": 0})
#: Hints about functions, branches, products of matrices and (the only ones with others) loops.
Control = enum.IntFlag("Control", {"NoHint": 0, "Unroll": 1, "DontUnroll": 2})
#: What an access to memory promises or asks.
MemoryAccess = enum.IntFlag("MemoryAccess", {"NonPrivatePointer": 0x20})
#: What a cooperative matrix is in a product.
MatrixUse = enum.IntEnum("MatrixUse", {"MatrixA": 0, "MatrixB": 1, "MatrixAccumulator": 2})
#: How a cooperative matrix lies in memory.
MatrixLayout = enum.IntEnum("MatrixLayout", {"RowMajorKHR": 0, "ColumnMajorKHR": 1})

#: Scope of a barrier, and what it orders: AcquireRelease | WorkgroupMemory.
SCOPE_WORKGROUP = 2
WORKGROUP_ACQUIRE_RELEASE = 0x8 | 0x100
#: The same under the Vulkan memory model: MakeAvailable | MakeVisible too.
WORKGROUP_AVAILABLE_VISIBLE = WORKGROUP_ACQUIRE_RELEASE | 0x2000 | 0x4000
SCOPE_SUBGROUP = 3

#: Terminators of a block: nothing may follow them but a label.
TERMINATORS = frozenset({Op.Branch, Op.BranchConditional, Op.Return, Op.Unreachable})

#: Instructions that give nothing, and those whose result has no type. All others begin with the
#: type and the id of their result.
WITHOUT_RESULT = frozenset({
    Op.Extension, Op.MemoryModel, Op.EntryPoint, Op.ExecutionMode, Op.Capability,
    Op.FunctionEnd, Op.Store, Op.Decorate, Op.MemberDecorate, Op.ControlBarrier, Op.LoopMerge,
    Op.SelectionMerge, Op.Branch, Op.BranchConditional, Op.Return, Op.Unreachable,
    Op.CooperativeMatrixStoreKHR,
})  # fmt: skip
WITHOUT_TYPE = frozenset({
    Op.ExtInstImport, Op.TypeVoid, Op.TypeBool, Op.TypeInt, Op.TypeFloat, Op.TypeVector,
    Op.TypeArray, Op.TypeRuntimeArray, Op.TypeStruct, Op.TypePointer, Op.TypeFunction,
    Op.TypeCooperativeMatrixKHR, Op.Label,
})  # fmt: skip
