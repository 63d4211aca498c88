"""`place`: assigns nodes to devices, and finds the values that must be copied between devices. This
module is imported by every `onnxgrad --help`, for the list of commands.
"""

from onnxgrad.cli.arguments import Command, reads, writes

COMMAND = Command(
    "assign nodes to devices for onnxruntime, and show the copies between devices",
    (
        ("place model.onnx --device 'cuda=op:Mat*'", "show the copies between the devices"),
        (
            "place model.onnx --device 'cuda=Mat*,op:Tanh' --propagate -o placed.onnx",
            "also place neighbours of placed nodes, and write the model",
        ),
    ),
    (
        reads("model", metavar="MODEL", help="an ONNX file, or - for stdin"),
        writes(
            "-o",
            "--output",
            metavar="OUT",
            help="the file to write; - is stdout (default: write nothing)",
        ),
    ),
    "onnxgrad.plugins.place.declaration.PlaceOptions",
    module="onnxgrad.plugins.place.command",
)
