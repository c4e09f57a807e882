"""The kinds of records in an index: JSON values, each made of records before it.

A number, a text, true, false and null stand for themselves. Everything else is a list whose first
item says what it is: the number of a class, which the numbers of its fields' records follow, or one
of the kinds below. `flatten` writes them, `rebuild` reads them.
"""

#: The numbers of the items' records follow; of a mapping a key, its value, a key, ...
TUPLE, LIST, SET, MAPPING = "tuple", "list", "set", "mapping"
NUMBERS = "numbers"  # a tuple of numbers, which follow
BYTES = "bytes"  # place in blobs
MEMBER = "member"  # name of an enum, and of its member
ARRAY = "array"  # dtype, place in blobs, shape
NUMBER = "number"  # dtype, place in blobs: NumPy's own kind of number
DTYPE = "dtype"  # its text
# What the model beside the file has, so that it is not written twice.
GIVEN_DATA = "given data"  # id of a value: its contents
GIVEN_SOURCE = "given source"  # place of a node: what the file says of it
GIVEN_ARRAY = "given array"  # dtype, where it begins in the model's bytes, shape
# A kernel: the places in blobs of its body (records of its own, which are numbered from 0) and of
# its code, null for none; then the records of name, workgroup, buffers and shared. One with code
# has no body: the model is compiled again where it is asked for.
KERNEL = "kernel"
