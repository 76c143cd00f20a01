"""Counts the member functions of each class, and reports the classes that declare too many.

A scanner of brackets, not a compiler: macros are not expanded, and directives are passed over.
"""

import re
from typing import Dict, Iterable, List, NamedTuple, Tuple

MAX_METHODS = 40

# The classes above the limit, and how many each declares. A number only falls.
CEILINGS = {
    "sluice::client::Relay": 80,
    "sluice::agg::Shard": 92,
    "sluice::client::GradientStream": 84,
    "sluice::client::Session": 92,
    "sluice::client::Sequence": 50,
    "sluice::sim::Worker": 69,
    "sluice::sim::BcubeWorld": 64,
    "sluice::sim::World": 68,
    "sluice::client::Job": 61,
    "sluice::sim::Oracle": 51,
    "sluice::agg::StoreShard": 51,
    "sluice::client::Recovery": 52,
}

# Comments, literals, directives. An apostrophe behind a digit is part of a number.
PASSED_OVER = re.compile(
    r'//(?:[^\n\\]|\\.)*|/\*.*?\*/|^[ \t]*#(?:[^\n\\]|\\.)*'
    r'|(?P<literal>R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"|"(?:[^"\\]|\\.)*"'
    r"|(?<![0-9A-Fa-f])'(?:[^'\\]|\\.)+')", re.DOTALL | re.MULTILINE)
TOKEN = re.compile(r"\w+|->|::|\S")
CLOSING = {"(": ")", "{": "}", "[": "]"}
NO_FUNCTION = {"using", "typedef", "static_assert", "enum", "namespace", "extern"}
NO_NAME = {"inline", "namespace", "::", "extern", "literal"}
CLASS_KEYS = {"class", "struct", "union"}
# Words whose brackets hold no parameters.
WITH_BRACKETS = {"alignas", "decltype", "explicit", "noexcept", "requires", "__attribute__"}
ACCESS = {"public", "protected", "private"}


class ClassSize(NamedTuple):
    name: str  # with its namespaces and the classes around it
    line: int
    functions: int


Tokens = List[Tuple[str, int]]  # text and line


def tokens_of(text: str) -> Tokens:
    def blank(match: "re.Match[str]") -> str:
        return ("literal" if match["literal"] else "") + "\n" * match.group().count("\n")

    return [(token, number)
            for number, line in enumerate(PASSED_OVER.sub(blank, text).split("\n"), 1)
            for token in TOKEN.findall(line)]


def behind_bracket(tokens: Tokens, at: int) -> int:
    """The place behind the bracket that opens at `at`, or the end."""
    ends = []
    for place in range(at, len(tokens)):
        text = tokens[place][0]
        if text in CLOSING:
            ends.append(CLOSING[text])
        elif text == ends[-1]:
            ends.pop()
            if not ends:
                return place + 1
    return len(tokens)


def behind_angles(tokens: Tokens, at: int) -> int:
    """The place behind the template's arguments that open at `at`, or the end."""
    depth = 0
    while at < len(tokens):
        text = tokens[at][0]
        depth += (text == "<") - (text == ">")
        at = behind_bracket(tokens, at) if text in CLOSING else at + 1
        if depth == 0:
            break
    return at


def without_template(member: Tokens) -> Tokens:
    while member and member[0][0] == "template":
        member = member[behind_angles(member, 1):]
    return member


def parameters(member: Tokens) -> int:
    """The place behind the parameters of a function that `member` declares; 0: it is none."""
    at = 0
    while at < len(member):
        text = member[at][0]
        following = member[at + 1][0] if at + 1 < len(member) else ""
        if at == 0 and text in NO_FUNCTION or text in ("=", "{"):  # a value comes first
            return 0
        if text == "operator":  # a name in brackets of its own, or of signs
            at += 3 if following == "(" else 2
            while at < len(member) and member[at][0] != "(":
                at += 1
            return behind_bracket(member, at)
        if text in WITH_BRACKETS and following == "(":
            at = behind_bracket(member, at + 1)
        elif text == "[":
            at = behind_bracket(member, at)
        elif text == "<":
            at = behind_angles(member, at)
        elif text == "(":
            at = behind_bracket(member, at)  # `(*name)(...)` is no function
            return 0 if member[at:] and member[at][0] == "(" else at
        else:
            at += 1
    return 0


def is_own(function: Tokens) -> bool:
    """Whether a class has written the function, and as its member."""
    ending = [text for text, _ in function[-2:]]
    return function[0][0] != "friend" and ending not in (["=", "default"], ["=", "delete"])


def named_scope(member: Tokens) -> List[str]:
    """The name of the namespace or class whose braces follow; none: they hold no declarations."""
    words = [text for text, _ in member]
    if "namespace" in words[:2] or words == ["extern", "literal"]:
        return ["::".join(word for word in words if word not in NO_NAME)]
    if words and words[0] in CLASS_KEYS and "=" not in words and parameters(member) == 0:
        at = 1
        while words[at:] and (words[at] == "[" or words[at] in WITH_BRACKETS):
            at = behind_bracket(member, at + (words[at] != "["))
        return ["".join(words[at:at + 1])]
    return []


def read_scope(tokens: Tokens, at: int, outer: List[str],
               found: List[ClassSize]) -> Tuple[int, int]:
    """Reads declarations up to the scope's end. The place behind it, and how many functions."""
    functions, start = 0, at
    while at < len(tokens) and tokens[at][0] != "}":
        text = tokens[at][0]
        member = without_template(tokens[start:at])
        if text == ";":
            functions += parameters(member) > 0 and is_own(member)
            at = start = at + 1
        elif text == ":" and at == start + 1 and tokens[start][0] in ACCESS:
            at = start = at + 1
        elif text == "{" and named_scope(member):
            inner = outer + [name for name in named_scope(member) if name]
            at, inside = read_scope(tokens, at + 1, inner, found)
            if member[0][0] in CLASS_KEYS:
                found.append(ClassSize("::".join(inner), member[0][1], inside))
            else:
                start = at
        elif text == "{":
            behind = parameters(member)
            at = behind_bracket(tokens, at)
            # Braces behind a name in a constructor's list of members are no body.
            is_body = behind and not (":" in [word for word, _ in member[behind:]] and
                                      re.match(r"\w|>", member[-1][0]))
            if is_body:
                functions, start = functions + is_own(member), at
        else:
            at = behind_bracket(tokens, at) if text in CLOSING else at + 1
    return at + 1, functions


def class_sizes(text: str) -> List[ClassSize]:
    """The classes of a file, inner ones first."""
    found: List[ClassSize] = []
    read_scope(tokens_of(text), 0, [], found)
    return found


def large_classes(files: Iterable[Tuple[str, str]], ceilings: Dict[str, int]) -> List[str]:
    """Classes of `files`, which are (path, text), with more functions than they may have, and rows
    of `ceilings` that are higher than they need to be."""
    findings, most = [], {}
    for path, text in files:
        for name, line, functions in class_sizes(text):
            limit = ceilings.get(name, MAX_METHODS)
            most[name] = max(functions, most.get(name, 0))
            if functions > limit:
                findings.append(f"{path}:{line}: {name} declares {functions} member functions; "
                                f"split it by idea, {limit} at most")
    for name, limit in ceilings.items():
        if most.get(name, 0) <= MAX_METHODS:
            findings.append(f"class_sizes.py: {name} is within {MAX_METHODS} member functions; "
                            "remove its row")
        elif most[name] < limit:
            findings.append(f"class_sizes.py: {name} declares {most[name]} member functions; lower "
                            f"its row from {limit}")
    return findings
