"""The command line, one module per command. Exit status: 0 fine, 1 a difference, 2 unusable input.

Nothing here computes anything: a command reads its arguments, calls the library and lays out the answer.
"""

from __future__ import annotations

import typer

from kvsim.cli.app import app_command
from kvsim.cli.bench import bench_command
from kvsim.cli.difftest import difftest_command
from kvsim.cli.explain import explain_command
from kvsim.cli.import_log import import_log_command
from kvsim.cli.memory import memory_command
from kvsim.cli.museum import museum_command
from kvsim.cli.plan import plan_command
from kvsim.cli.record import record_command
from kvsim.cli.render import render_command
from kvsim.cli.replay import replay_command
from kvsim.cli.show import show_command
from kvsim.cli.simulate import simulate_command
from kvsim.cli.sweep import sweep_command
from kvsim.cli.verify import verify_command

app = typer.Typer(
    name="kvsim",
    help="An executable reference of llama.cpp's memory family (b11434), a tester and a visual debugger.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("replay")(replay_command)
app.command("show")(show_command)
app.command("verify")(verify_command)
app.command("memory")(memory_command)
app.command("render")(render_command)
app.command("app")(app_command)
app.command("bench")(bench_command)
app.command("difftest")(difftest_command)
app.command("museum")(museum_command)
app.command("explain")(explain_command)
app.command("import-log")(import_log_command)
app.command("record")(record_command)
app.command("simulate")(simulate_command)
app.command("plan")(plan_command)
app.command("sweep")(sweep_command)
