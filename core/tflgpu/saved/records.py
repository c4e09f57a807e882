"""The kinds of records in an index.

A record is a kind and what belongs to it: numbers of earlier records (``refs``), or places in the
index's other vectors. `flatten` writes them, `rebuild` reads them.
"""

from __future__ import annotations

NONE, TRUE, FALSE = 0, 1, 2
INTEGER = 3  # place in integers
FLOAT = 4  # place in floats
TEXT = 5  # place in texts
BYTES = 6  # place in blobs
TUPLE = 7  # count, refs
LIST = 8  # count, refs
MAPPING = 9  # count of refs, refs: a key, its value, a key, ...
SET = 10  # count, refs
MEMBER = 11  # text of the enum's name, text of the member's
ARRAY = 12  # text of the dtype, place in blobs, rank, places of its sizes in integers
NUMBER = 13  # text of the dtype, place in blobs: NumPy's own kind of number
DTYPE = 14  # its text
LARGE = 15  # text: a whole number of more than 64 bits, in hexadecimal digits
#: What the graph of the file has, so that it is not written twice.
GIVEN_DATA = 16  # place in integers: contents of the value with this id
GIVEN_SOURCE = 17  # place in integers: what the file says of the node at this place
# A tuple of numbers of one kind: a run of them, which no other record has a part of.
INTEGERS = 18  # count, place of the first in integers
FLOATS = 19  # count, place of the first in floats
# Part of the model's bytes, as an array: text of the dtype, place of where it begins in integers,
# rank, places of its sizes in integers.
GIVEN_ARRAY = 21
# A kernel: refs of name, workgroup, buffers and shared; where the words of its body begin in bodies
# and how many there are; and 1 + the place of its code in blobs, or 0. The body has records of its
# own, which are numbered from 0. One with code need not have a body: the model is compiled again
# where it is asked for.
KERNEL = 20
#: Kinds from here on are classes: the refs of the fields follow.
OBJECT = 32

#: What keys of mappings and members of sets may be: what takes no time to compare.
KEYS = (str, int, type(None))
