"""A process that lives on while nobody listens: write to it, leave, come back, read on from where you were."""

from __future__ import annotations

from space import Gap, Sandbox


def main() -> None:
    with Sandbox.create(ttl_seconds=600) as sandbox:
        process = sandbox.start(["cat"], stdin=True)
        process.write_stdin("first\n")
        read = 0
        for piece in process.output():
            print(piece)
            if not isinstance(piece, Gap):
                read = piece.offset + len(piece.data)
            break

        # Another day, another program: the id is all that it takes.
        again = sandbox.process(process.id)
        again.write_stdin("second\n", close=True)
        for item in again.text(stdout=read):
            print(item)
        print(again.wait().code, again.result().text.split())


if __name__ == "__main__":
    main()
