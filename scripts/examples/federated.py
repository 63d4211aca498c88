"""Federated learning: ten clients train one classifier of digits, and no client shows its data.

    python scripts/examples/federated.py [--rounds N]

Each client has the images of few digits. In a round each continues from the server's weights for an
epoch on its own images and sends a file with what it added to them; the server adds the mean of the
files, weighted by their images (McMahan et al., "Communication-efficient learning of deep networks
from decentralized data", 2017). The proximal penalty keeps clients with such different data near
each other (Li et al., "Federated optimization in heterogeneous networks", 2020). Beside them a
classifier learns from all images at one place, in as many epochs.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from make_digits import TRAINED_ON, digits, network

from onnxgrad import Trainer, train, training_step

CLIENTS, SEED = 10, 0


def parts(labels):
    """The images of each client: two pieces of twenty that are sorted by digit."""
    pieces = np.array_split(np.argsort(labels, kind="stable"), 2 * CLIENTS)
    order = np.random.default_rng(SEED).permutation(len(pieces))
    return [np.concatenate([pieces[i] for i in pair]) for pair in order.reshape(CLIENTS, 2)]


def main(rounds=160):
    x, labels = digits()
    own, held_out = slice(TRAINED_ON), slice(TRAINED_ON, None)
    clients = [{"x": x[own][p], "labels": labels[own][p]} for p in parts(labels[own])]
    test, right = {"x": x[held_out], "labels": labels[held_out]}, {"accuracy": train.accuracy()}
    loss = train.CrossEntropy() + 0.01 * train.ProximalPenalty("*")
    step = training_step(network("mlp"), loss, train.SGD(lr=0.3))
    server, *trainers = (Trainer(step, threads=1) for _ in range(1 + CLIENTS))

    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            files = [Path(folder) / f"{i}.safetensors" for i in range(CLIENTS)]
            for client, data, file in zip(trainers, clients, files, strict=True):
                client.parameters = before = server.parameters
                client.fit(data, epochs=number + 1, batch_size=8, constants=client.anchors)
                client.delta(before, examples=len(data["x"])).save(file)
            server.apply(files)
            if number % 20 == 19 or number == rounds - 1:
                found = server.evaluate(test, metrics=right, constants=server.anchors)
                print(f"round {number + 1}: right on held-out digits {found['accuracy']:.3f}")

    alone = Trainer(
        training_step(network("mlp"), train.CrossEntropy(), train.SGD(lr=0.1)), threads=1
    )
    alone.fit({"x": x[own], "labels": labels[own]}, epochs=rounds)
    one = alone.evaluate(test, metrics=right)
    print(f"digits of a client: at most {max(len(set(c['labels'])) for c in clients)}")
    print(f"one classifier with all images: {one['accuracy']:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=160, help="rounds of training (default: 160)")
    main(parser.parse_args().rounds)
