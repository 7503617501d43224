"""The command `unisono`. A command is imported when it is called, so commands without tensors load no torch."""

from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ... import __version__
from ...base.errors import RankFailed, UnisonoError, UsageError

__all__ = ["app"]

_COMMANDS = "run", "bench", "explain", "draw", "doctor", "top", "trace", "check", "simulate", "export"
"""Each is a function in a module of its own name."""


class _Commands(TyperGroup):
    def list_commands(self, _ctx: Any) -> list[str]:
        return list(_COMMANDS)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        close = get_close_matches(args[0], _COMMANDS, 1)
        if close and args[0] not in _COMMANDS:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {close[0]!r}?")
        return super().resolve_command(ctx, args)

    def get_command(self, _ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _COMMANDS:
            return None
        single = typer.Typer(add_completion=False)
        single.command(cmd_name)(getattr(import_module(f".{cmd_name}", __name__), cmd_name))
        command = typer.main.get_command(single)
        # Arguments after a script or a command belong to it.
        command.context_settings["allow_interspersed_args"] = cmd_name not in ("run", "trace")
        return command

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UnisonoError as error:
            typer.secho(f"unisono: {error}", err=True, fg="red")
            wrong_command = isinstance(error, UsageError) and not isinstance(error, RankFailed)
            raise typer.Exit(2 if wrong_command else 1) from None


app = typer.Typer(cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"unisono {__version__}")
        raise typer.Exit


@app.callback()
def _unisono(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Collective communication for PyTorch tensors, written in Python that you can read."""
