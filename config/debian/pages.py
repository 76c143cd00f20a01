"""Writes manual pages and completions into an installed tree: pages.py SOURCE STAGED.

They come from what the programs themselves read, so none can be out of date: the argument parsers
of `python3 -m sluice` and sluicectl, and config/appliance.toml, the configuration's reference.
sluiced(8) is a file beside this one.
"""

import argparse
import importlib.machinery
import importlib.util
import re
import sys
from pathlib import Path

_DATE = "2026-11-29"


def roff(text):
    """Text for man(7), in which some characters are commands."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return re.sub(r"^\.", r"\\&.", escaped, flags=re.MULTILINE)


def paragraphs(text):
    """A docstring as man(7): paragraphs are filled, lines that are indented stay as they are."""
    found = []
    for part in re.split(r"\n\s*\n", text.strip()):
        if all(line.startswith(" ") for line in part.splitlines()):
            found.append(f".PP\n.EX\n{roff(part)}\n.EE")
        else:
            found.append(f".PP\n{roff(' '.join(part.split()))}")
    return "\n".join(found)


def page(name, section, title, version, *parts):
    head = (f'.TH {name.upper()} {section} "{_DATE}" "Sluice {version}" "Sluice"\n'
            f".SH NAME\n{roff(name)} \\- {roff(title)}")
    return "\n".join((head, *parts)) + "\n"


def subcommands(parser):
    """(name, help, parser) of each."""
    action = next(action for action in parser._actions
                  if isinstance(action, argparse._SubParsersAction))
    texts = {choice.dest: choice.help for choice in action._choices_actions}
    return [(name, texts[name], command) for name, command in action.choices.items()]


def flags(action):
    value = action.metavar or action.dest.upper()
    value = "" if action.nargs == 0 else f" {value if isinstance(value, str) else ' '.join(value)}"
    return ", ".join(action.option_strings) + value if action.option_strings else value.strip()


def help_text(parser, action):
    return parser._get_formatter()._expand_help(action) if action.help else ""


def options(parser):
    rows = [f".TP\n.B {roff(flags(action))}\n{roff(help_text(parser, action))}"
            for action in parser._actions
            if not isinstance(action, argparse._SubParsersAction)
            and action.help != argparse.SUPPRESS]
    return ".SH OPTIONS\n" + "\n".join(rows)


def synopsis(parser, name):
    usage = " ".join(parser.format_usage().split()).partition(parser.prog)[2].strip()
    return f".SH SYNOPSIS\n.B {roff(name)}\n{roff(usage)}"


def synopsis_of(command):
    """A command of sluicectl with its arguments."""
    usage = " ".join(command.format_usage().split())
    return usage.partition("sluicectl ")[2].replace("[-h] ", "").replace(" [-h]", "")


def command_pages(parser, version, modules):
    """{file name: text} of sluice(1) and of each command, also of a command's commands."""
    found = {}
    rows = []
    for name, text, command in subcommands(parser):
        full = f"sluice-{name}"
        rows.append(f".TP\n.BR {roff(full)} (1)\n{roff(text)}")
        more = []
        if any(isinstance(a, argparse._SubParsersAction) for a in command._actions):
            for sub, sub_text, sub_parser in subcommands(command):
                more.append(f".SH COMMAND {sub.upper()}\n{roff(sub_text or '')}\n"
                            f"{options(sub_parser).replace('.SH OPTIONS', '.PP')}")
        found[f"{full}.1"] = page(
            full, 1, text, version, synopsis(command, f"sluice {name}"),
            ".SH DESCRIPTION", paragraphs(modules[name].partition("\n")[2] or modules[name]),
            options(command), *more, ".SH SEE ALSO\n.BR sluice (1)")
    found["sluice.1"] = page(
        "sluice", 1, "workers' side of a software switch that sums gradients", version,
        synopsis(parser, "sluice"), ".SH COMMANDS", *rows, options(parser),
        ".SH SEE ALSO\n.BR sluiced (8)")
    return found


def module_of(program):
    """A program without .py, as a module."""
    loader = importlib.machinery.SourceFileLoader(program.name, str(program))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(program.name, loader))
    loader.exec_module(module)
    return module


def control_page(module, version):
    """sluicectl(1), of the program's own parser."""
    parser = module.parser()
    rows = [f".TP\n.B {roff(synopsis_of(command))}\n{roff(text)}"
            for _, text, command in subcommands(parser)]
    return page("sluicectl", 1, parser.description, version, synopsis(parser, "sluicectl"),
                ".SH DESCRIPTION", paragraphs(module.__doc__), ".SH COMMANDS", *rows,
                options(parser), ".SH SEE ALSO\n.BR sluiced (8)")


def settings_page(reference, version):
    """appliance.toml(5) from the reference, whose comments are the descriptions."""
    parts, words = [], []
    for line in reference.read_text().splitlines():
        if line.startswith("[") or line.startswith("# ["):
            parts.append(f".SH TABLE {roff(line.lstrip('# '))}")
            parts += [f".PP\n{roff(' '.join(words))}"] if words else []
            words = []
        elif re.match(r"(# )?[a-z_0-9.]+ = ", line):
            key, _, value = line.lstrip("# ").partition(" = ")
            default = "no default" if line.startswith("#") else f"default {value}"
            parts.append(f".TP\n.BR {roff(key)} \" ({roff(default).replace(chr(34), '')})\"\n"
                         f"{roff(' '.join(words))}")
            words = []
        elif line.startswith("#"):
            words.append(line.lstrip("# "))
        elif words and not parts:
            parts.append(f".SH DESCRIPTION\n.I /etc/sluice/appliance.toml\nholds the settings of\n"
                         f".BR sluiced (8).\n{roff(' '.join(words))}")
            words = []
    return page("appliance.toml", 5, "settings of sluiced", version, *parts,
                ".SH SEE ALSO\n.BR sluiced (8)")


def completion(parser):
    """A bash completion: commands, their options, then files."""
    cases = "\n".join(
        f"    {name}) words='{' '.join(o for a in command._actions for o in a.option_strings)}' ;;"
        for name, _, command in subcommands(parser))
    names = " ".join(name for name, _, _ in subcommands(parser))
    return f"""# bash completion of sluice(1)
_sluice() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} words=
  if ((COMP_CWORD == 1)); then
    words='{names} --help --version'
  else
    case ${{COMP_WORDS[1]}} in
{cases}
    esac
  fi
  if ((COMP_CWORD == 1)) || [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  else
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
  fi
}}
complete -o filenames -F _sluice sluice
"""


def zsh_word(*parts):
    """One word for zsh of parts, in which a specification gives these characters a meaning."""
    text = "".join(re.sub(r"([\\\[\]:])", r"\\\1", " ".join(part.split())) if index % 2 else part
                   for index, part in enumerate(parts))
    return "'" + text.replace("'", "'\\''") + "'"


def zsh_value(action):
    """What completes an option's value or an argument: its choices, the box's own names, files."""
    if action.choices:
        return "(" + " ".join(map(str, action.choices)) + ")"
    return {"JOB": "_sluice_jobs", "RANK": "_sluice_ranks"}.get(action.metavar, "_files")


def zsh_arguments(parser):
    """The specifications of _arguments for a command's options and arguments."""
    found = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) or action.help == argparse.SUPPRESS:
            continue
        value = f":{flags(action).split(' ')[-1]}:{zsh_value(action)}" if action.nargs != 0 else ""
        if not action.option_strings:
            found.append(zsh_word(("*" if action.nargs in ("*", "...") else "") + value))
        for option in action.option_strings:
            found.append(zsh_word(f"{option}[", help_text(parser, action), "]" + value))
    return " \\\n        ".join(["_arguments", *found])


_ZSH_NAMES = """_sluice_jobs() {
  compadd -- ${(f)"$(sluicectl jobs 2>/dev/null | awk 'NR > 1 { print $1 }')"}
}
_sluice_ranks() {
  compadd -- ${(f)"$(sluicectl members $words[2] 2>/dev/null | awk 'NR > 1 { print $1 }')"}
}
"""


def zsh_completion(name, parser):
    """A zsh completion, with the help of each command and option."""
    commands = "\n".join(f"    {zsh_word(command + ':', text or '')}"
                         for command, text, _ in subcommands(parser))
    cases = "\n".join(f"      {command}) {zsh_arguments(sub)} ;;"
                      for command, _, sub in subcommands(parser))
    return f"""#compdef {name}
# zsh completion of {name}(1)
{_ZSH_NAMES if "_sluice_jobs" in cases else ""}_{name}() {{
  local curcontext=$curcontext state line
  local -a commands=(
{commands}
  )
  {zsh_arguments(parser)} '1: :->command' '*:: :->arguments'
  case $state in
    command) _describe command commands ;;
    arguments)
      case $words[1] in
{cases}
      esac ;;
  esac
}}
_{name} "$@"
"""


_SLUICED_COMPLETION = """# bash completion of sluiced(8)
_sluiced() {
  local word=${COMP_WORDS[COMP_CWORD]}
  if [[ ${COMP_WORDS[COMP_CWORD - 1]} == --config ]]; then
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
  else
    local options='--check-config --config --help --ports --version'
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
  fi
}
complete -o filenames -F _sluiced sluiced
"""


def main(source, staged):
    sys.path.insert(0, str(source / "client" / "python"))
    import sluice.__main__ as command_line
    parser = command_line.parser()
    parser.prog = "sluice"
    version = command_line.sluice.__version__
    modules = {name: sys.modules[command.get_default("run").__module__].__doc__
               for name, _, command in subcommands(parser)}
    pages = command_pages(parser, version, modules)
    pages["appliance.toml.5"] = settings_page(source / "config" / "appliance.toml", version)
    control = module_of(staged / "usr" / "bin" / "sluicectl")
    pages["sluicectl.1"] = control_page(control, version)
    pages["sluiced.8"] = (source / "config" / "debian" / "sluiced.8").read_text()
    for name, text in pages.items():
        folder = staged / "usr" / "share" / "man" / f"man{name[-1]}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    folder = staged / "usr" / "share" / "bash-completion" / "completions"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sluice").write_text(completion(parser))
    (folder / "sluiced").write_text(_SLUICED_COMPLETION)
    folder = staged / "usr" / "share" / "zsh" / "vendor-completions"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "_sluice").write_text(zsh_completion("sluice", parser))
    (folder / "_sluicectl").write_text(zsh_completion("sluicectl", control.parser()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
