"""Records of TensorFlow (`tf.train.Example`), decoded with the protocol buffers of
tensorflow_datasets, without TensorFlow.
"""

from collections.abc import Collection

import numpy as np


def decode(record: bytes, names: Collection[str] | None = None) -> dict[str, list[bytes] | np.ndarray]:
    """Returns the features of a serialized `tf.train.Example` by name: bytes in a list, numbers as
    an array.

    Args:
      record: the serialized message.
      names: the features to decode; None: all.

    Raises:
      ValueError: it is no such record.
    """
    from google.protobuf.message import DecodeError
    from tensorflow_datasets.proto import tf_example_pb2

    try:
        message = tf_example_pb2.Example.FromString(record)  # pyright: ignore[reportAttributeAccessIssue]
        features = message.features.feature
    except DecodeError as error:
        raise ValueError(f"a record of {len(record)} bytes is no tf.train.Example ({error})") from None
    decoded: dict[str, list[bytes] | np.ndarray] = {}
    for name in features if names is None else names:
        if name not in features:
            continue
        feature = features[name]
        kind = feature.WhichOneof("kind")
        if kind == "float_list":
            decoded[name] = np.array(feature.float_list.value, np.float32)
        elif kind == "int64_list":
            decoded[name] = np.array(feature.int64_list.value, np.int64)
        else:
            decoded[name] = list(feature.bytes_list.value)
    return decoded
