"""Single files: write, read a part, list, watch."""

from __future__ import annotations

from space import Sandbox


def main() -> None:
    with Sandbox.create(ttl_seconds=600) as sandbox:
        files = sandbox.files
        files.write("notes/a.txt", "größe\n", parents=True)
        files.write("notes/a.txt", b"more\n", append=True)
        print(files.read_text("notes/a.txt").split(), files.read("notes/a.txt", offset=8, length=4))
        files.write("notes/b.bin", (bytes(1 << 16) for _ in range(64)), mode=0o600)
        print([(info.name, info.kind, info.size) for info in files.list("notes")])
        with files.watch("notes") as changes:
            files.mkdir("notes/new")
            print(next(changes))
        files.remove("notes", recursive=True)
        print(files.exists("notes"))


if __name__ == "__main__":
    main()
