"""Code cell by cell through E2B's code interpreter SDKs and ours: values, output, pictures, contexts, time, variables, clones."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Iterator
from typing import Any

import pytest
from e2b_code_interpreter import AsyncSandbox, Sandbox
from e2b_code_interpreter.charts import ChartType, ScaleType
from tests.e2b import interpreter
from tests.e2b.stage import Js, Running

import space

# One worker brings the template for all of these; that, and to bake a guest of it, takes minutes where the processor is emulated.
pytestmark = [pytest.mark.full, pytest.mark.xdist_group("interpreter"), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def template(server: Running) -> str:
    with server.ours() as client:
        interpreter.bring(client)
    return interpreter.NAME


@pytest.fixture(scope="module")
def cells(template: str) -> Iterator[Any]:
    """One sandbox for tests that leave it as they found it, or use contexts of their own."""
    with Sandbox.create(timeout=3600, envs={"OF_SANDBOX": "all of it"}) as sandbox:
        yield sandbox


def test_what_a_cell_defines_is_there_for_the_next_with_values_logs_count_and_errors(cells: Any) -> None:
    first = cells.run_code("x = 20\nprint('out')\nimport sys; print('err', file=sys.stderr)")
    assert (first.logs.stdout, first.logs.stderr, first.results, first.error) == (["out\n"], ["err\n"], [], None)
    second = cells.run_code("x + 22")
    assert (second.text, second.results[0].is_main_result, second.execution_count - first.execution_count) == ("42", True, 1)
    assert cells.run_code("'quoted'").text == "quoted"
    failed = cells.run_code("1/0")
    assert (failed.error.name, failed.error.value) == ("ZeroDivisionError", "division by zero")
    assert "ZeroDivisionError" in failed.error.traceback
    assert "".join(cells.run_code("!echo from $((1 + 1))").logs.stdout).split() == ["from", "2"]
    assert cells.run_code("import asyncio; await asyncio.sleep(0, 'awaited')").text == "awaited"
    assert (cells.run_code("").results, cells.run_code("input()").error.name) == ([], "StdinNotImplementedError")


def test_callbacks_hear_of_output_while_the_code_runs(cells: Any) -> None:
    heard: list[tuple[str, float]] = []
    code = "import time\nprint('first', flush=True)\ntime.sleep(2)\nprint('second')\ndisplay(5)\n1/0"
    cells.run_code(
        code,
        on_stdout=lambda message: heard.append((message.line, time.monotonic())),
        on_result=lambda result: heard.append((result.text, time.monotonic())),
        on_error=lambda error: heard.append((error.name, time.monotonic())),
    )
    assert [text for text, _ in heard] == ["first\n", "second\n", "5", "ZeroDivisionError"]
    assert heard[1][1] - heard[0][1] > 1.5


def test_silence_is_bridged_by_keepalives(cells: Any) -> None:
    assert cells.run_code("import time; time.sleep(12); 'awake'").text == "awake"


@pytest.mark.parametrize(
    ("language", "code", "text", "out"),
    [
        ("javascript", "const a = 1; const b = await Promise.resolve(2); a + b", "3", []),
        ("js", "const a = 5; class A {}; console.log('a', a); [a]", "[ 5 ]", ["a 5\n"]),
        ("js", "import path, { join } from 'path'; path.sep + join('b', 'c') + require('os').EOL.length", "/b/c1", []),
        ("typescript", "enum E { One = 1 }; const n: number = E.One; n", "1", []),
        ("ts", "interface P { x: number }; const p = { x: 3 } satisfies P; p.x", "3", []),
        ("bash", "echo one; echo two | tr a-z A-Z; pwd", None, ["one\n", "TWO\n", "/home/user\n"]),
    ],
)
def test_languages_have_contexts_of_their_own(cells: Any, language: str, code: str, text: str | None, out: list[str]) -> None:
    execution = cells.run_code(code, language=language)
    assert (execution.error, execution.text, "".join(execution.logs.stdout)) == (None, text, "".join(out))


def test_errors_of_other_languages_are_errors(cells: Any) -> None:
    thrown = cells.run_code("throw new TypeError('no such luck')", language="js").error
    assert (thrown.name, thrown.value) == ("TypeError", "no such luck")
    assert cells.run_code("let a = {", language="js").error.name == "SyntaxError"
    assert cells.run_code("false", language="bash").error.value == "1"
    with pytest.raises(Exception, match="language 'cobol' is not known"):
        cells.run_code("x", language="cobol")


def test_contexts_are_made_listed_restarted_and_removed(cells: Any) -> None:
    context = cells.create_code_context(cwd="/tmp", language="python")
    assert (context.cwd, context.language) == ("/tmp", "python")
    assert cells.run_code("import os; own = 1; os.getcwd()", context=context).text == "/tmp"
    assert cells.run_code("'own' in globals()").text == "False"
    listed = cells.list_code_contexts()
    assert context.id in {each.id for each in listed}
    assert {"python", "javascript"} <= {each.language for each in listed}
    cells.restart_code_context(context)
    assert cells.run_code("'own' in globals()", context=context).text == "False"
    cells.remove_code_context(context.id)
    assert context.id not in {each.id for each in cells.list_code_contexts()}
    with pytest.raises(Exception, match="not found"):
        cells.run_code("1", context=context)
    with pytest.raises(Exception, match="not found"):
        cells.remove_code_context(context)
    with pytest.raises(Exception, match="not a directory"):
        cells.create_code_context(cwd="/nowhere")


FORMS = """
from IPython.display import display, HTML, Markdown, SVG, Latex, JSON, Javascript, Image
svg = SVG('<svg xmlns="http://www.w3.org/2000/svg"></svg>')
for each in (HTML('<b>h</b>'), Markdown('# m'), svg, Latex('$l$'), JSON({'j': 1}), Javascript('s()')):
    display(each)
display(Image(data=b'\\xff\\xd8\\xff', format='jpeg'))
display({'application/pdf': 'JVBERg==', 'application/x-own': 'own'}, raw=True)
"""


def test_results_have_the_forms_that_were_displayed(cells: Any) -> None:
    results = cells.run_code(FORMS).results
    html, markdown, svg, latex, json, javascript, jpeg, raw = results
    assert (html.html, markdown.markdown, latex.latex, json.json, javascript.javascript) == ("<b>h</b>", "# m", "$l$", {"j": 1}, "s()")
    assert svg.svg.startswith("<svg")
    assert base64.b64decode(jpeg.jpeg) == b"\xff\xd8\xff"
    assert (raw.pdf, raw.extra) == ("JVBERg==", {"application/x-own": "own"})
    assert not any(each.is_main_result for each in results)


CHARTS = """
import matplotlib.pyplot as plt, datetime
plt.figure(); plt.plot([datetime.date(2024, 1, day) for day in (1, 2, 3)], [1, 10, 100], label='growth')
plt.yscale('log'); plt.xlabel('Time (days)'); plt.title('Line'); plt.show()
plt.figure(); plt.scatter([1, 2], [3, 4], label='dots'); plt.show()
plt.figure(); plt.bar(['a', 'b'], [3, 4], label='group'); plt.ylabel('Weight (kg)'); plt.show()
plt.figure(); plt.pie([1, 3], labels=['q', 'r']); plt.show()
plt.figure(); plt.boxplot([[1, 2, 3, 4, 30]], tick_labels=['box']); plt.show()
figure, (left, right) = plt.subplots(1, 2); left.plot([1, 2], [3, 4]); right.bar(['z'], [1]); figure.suptitle('Both'); plt.show()
"""


def test_figures_come_as_pictures_and_as_data(cells: Any) -> None:
    execution = cells.run_code(CHARTS)
    assert execution.error is None
    assert all(base64.b64decode(result.png).startswith(b"\x89PNG") for result in execution.results)
    line, scatter, bar, pie, box, both = (result.chart for result in execution.results)
    kinds = ["LINE", "SCATTER", "BAR", "PIE", "BOX_AND_WHISKER", "SUPERCHART"]
    assert [chart.type for chart in (line, scatter, bar, pie, box, both)] == [ChartType[name] for name in kinds]
    assert (line.title, line.x_label, line.x_unit, line.x_scale, line.y_scale) == (
        "Line", "Time (days)", "days", ScaleType.DATETIME, ScaleType.LOG,
    )  # fmt: skip
    assert (line.elements[0].label, line.elements[0].points[2]) == ("growth", ("2024-01-03T00:00:00", 100))
    assert scatter.elements[0].points == [(1, 3), (2, 4)]
    assert [(each.label, each.group, each.value) for each in bar.elements] == [("a", "group", 3), ("b", "group", 4)]
    assert [(each.label, each.angle) for each in pie.elements] == [("q", 90), ("r", 270)]
    assert (box.elements[0].label, box.elements[0].median, box.elements[0].outliers) == ("box", 3, [30])
    assert [chart.type for chart in both.elements] == [ChartType.LINE, ChartType.BAR]


def test_a_table_comes_as_text_html_and_data(cells: Any) -> None:
    code = "import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': ['x', None], 't': pd.to_datetime(['2024-01-01', None])})"
    result = cells.run_code(code).results[0]
    assert result.data == {"a": [1, 2], "b": ["x", None], "t": ["2024-01-01T00:00:00", None]}
    assert "<table" in result.html
    assert result.text.splitlines()[0].split() == ["a", "b", "t"]


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("python", "import os; print(os.environ.get('OF_SANDBOX'), os.environ.get('OF_CELL'))"),
        ("js", "console.log(process.env.OF_SANDBOX, process.env.OF_CELL ?? 'None')"),
        ("bash", "echo $OF_SANDBOX ${OF_CELL:-None}"),
    ],
)
def test_variables_are_the_sandboxs_and_for_one_execution_the_cells(cells: Any, language: str, code: str) -> None:
    assert cells.run_code(code, language=language).logs.stdout == ["all of it None\n"]
    assert cells.run_code(code, language=language, envs={"OF_CELL": "now"}).logs.stdout == ["all of it now\n"]
    assert cells.run_code(code, language=language).logs.stdout == ["all of it None\n"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("language", "forever", "define", "ask"),
    [
        ("python", "while True: pass", "kept = 7", "print(kept)"),
        ("js", "while (true) {}", "var kept = 7", "console.log(kept)"),
        ("js", "await new Promise(() => {})", "var kept = 7", "console.log(kept)"),
        ("bash", "sleep 1000", "kept=7", "echo $kept"),
    ],
)
def test_a_client_that_gives_up_interrupts_the_code_and_what_was_defined_stays(
    cells: Any, language: str, forever: str, define: str, ask: str
) -> None:
    cells.run_code(define, language=language)
    with pytest.raises(Exception, match=r"(?i)time"):
        cells.run_code(forever, language=language, timeout=2)
    assert cells.run_code(ask, language=language, timeout=60).logs.stdout == ["7\n"]


def test_a_kernel_that_dies_is_told_and_followed_by_another(server: Running, cells: Any) -> None:
    context = cells.create_code_context()
    lost = cells.run_code("gone = 1; import os, signal; os.kill(os.getpid(), signal.SIGKILL)", context=context)
    assert (lost.results, lost.error) == ([], None)
    assert cells.run_code("'gone' in globals()", context=context).text == "False"
    with server.ours() as client:
        ours = space.Sandbox.connect("sb-" + cells.sandbox_id[1:], client=client)
        assert ours.run_code("import os; os._exit(1)", context=context.id).died
    cells.remove_code_context(context)


def test_executions_of_one_context_wait_and_those_of_two_do_not(template: str, cells: Any) -> None:
    async def scenario() -> None:
        sandbox = await AsyncSandbox.connect(cells.sandbox_id)
        other = await sandbox.create_code_context()
        began = time.monotonic()
        code = "import time; a = time.monotonic(); time.sleep(3); print(a, time.monotonic())"
        found = await asyncio.gather(sandbox.run_code(code), sandbox.run_code(code), sandbox.run_code(code, context=other))
        spans = [tuple(map(float, each.logs.stdout[0].split())) for each in found]
        first, second = sorted(spans[:2])
        assert first[1] <= second[0]
        assert spans[2][0] < second[0]
        assert time.monotonic() - began < 60
        heard: list[str] = []

        async def listen(message: Any) -> None:
            heard.append(message.line)

        await sandbox.run_code("print('async')", on_stdout=listen)
        assert "".join(heard) == "async\n"
        await sandbox.remove_code_context(other)

    asyncio.run(scenario())


DRAWS = {
    "python": "import random, numpy, os, ssl; print(random.random(), numpy.random.random(), ssl.RAND_bytes(8).hex())",
    "js": "console.log(Math.random(), require('crypto').randomBytes(8).toString('hex'), "
    "require('crypto').generateKeyPairSync('ed25519').publicKey.export({ type: 'spki', format: 'der' }).toString('hex'))",
    "bash": "echo $RANDOM$RANDOM$RANDOM $SRANDOM",
}


@pytest.mark.full
def test_no_two_clones_draw_the_same_numbers_in_any_language(template: str) -> None:
    drawn: dict[str, list[str]] = {language: [] for language in DRAWS}
    for _ in range(2):
        with Sandbox.create() as sandbox:
            for language, code in DRAWS.items():
                execution = sandbox.run_code(code, language=language)
                assert execution.error is None
                drawn[language] += "".join(execution.logs.stdout).split()
    for language, words in drawn.items():
        assert len(set(words)) == len(words) >= 4, (language, words)


def test_state_survives_a_pause_and_the_clock_is_right_after_it(template: str) -> None:
    sandbox = Sandbox.create()
    try:
        sandbox.run_code("kept = [1, 2, 3]")
        sandbox.run_code("globalThis.kept = 'js'", language="js")
        sandbox.pause()
        time.sleep(3)
        again = Sandbox.connect(sandbox.sandbox_id)
        assert again.run_code("sum(kept)").text == "6"
        assert again.run_code("kept", language="js").text == "js"
        assert abs(float(again.run_code("import time; time.time()").text) - time.time()) < 30
    finally:
        sandbox.kill()


def test_javascripts_sdk_runs_cells(cells: Any, js: Js) -> None:
    said = js(
        """
        const sandbox = await interpreter.Sandbox.connect(given.id)
        const lines = []
        const first = await sandbox.runCode('y = 4\\nprint("hi")\\ny * 2', { onStdout: line => { lines.push(line.line) } })
        const failed = await sandbox.runCode('nope')
        const context = await sandbox.createCodeContext({ language: 'javascript', cwd: '/tmp' })
        const inside = await sandbox.runCode('process.cwd()', { context })
        const late = await thrown(() => sandbox.runCode('while True: pass', { timeoutMs: 2000 }))
        const after = await sandbox.runCode('y')
        await sandbox.restartCodeContext(context)
        const listed = (await sandbox.listCodeContexts()).map(each => each.id)
        await sandbox.removeCodeContext(context)
        const plot = await sandbox.runCode('import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()')
        return { text: first.text, lines, error: failed.error.name, inside: inside.text, late: late?.name, after: after.text,
            listed: listed.includes(context.id), chart: plot.results.at(-1).chart?.type, png: plot.results.at(-1).png.slice(0, 5) }
        """,
        id=cells.sandbox_id,
    )
    assert said == {
        "text": "8", "lines": ["hi\n"], "error": "NameError", "inside": "/tmp", "late": "TimeoutError", "after": "4", "listed": True,
        "chart": "line", "png": "iVBOR",
    }  # fmt: skip


def test_our_own_sdk_runs_cells_over_the_port_tunnel(server: Running, cells: Any) -> None:
    async def scenario() -> None:
        async with space.AsyncClient(api_url=server.served.url, api_key=server.key) as client:
            sandbox = await space.AsyncSandbox.connect("sb-" + cells.sandbox_id[1:], client=client)
            await sandbox.run_code("ours = 1")
            late = await sandbox.run_code("while True: pass", timeout=2)
            assert (late.timed_out, late.ok, late.error and late.error.name) == (True, False, "KeyboardInterrupt")
            assert (await sandbox.run_code("ours")).text == "1"
            running = asyncio.create_task(sandbox.run_code("import time; time.sleep(1000)"))
            await asyncio.sleep(2)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert (await sandbox.run_code("ours + 1", timeout=60)).text == "2"
            context = await sandbox.create_code_context(language="bash", cwd="/srv")
            assert (await sandbox.run_code("pwd", context=context)).stdout == "/srv\n"
            await sandbox.delete_code_context(context)
            picture = (await sandbox.run_code("import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()")).results[-1]
            assert (picture.png or b"").startswith(b"\x89PNG")
            assert (picture.chart or {})["type"] == "line"

    asyncio.run(scenario())
