"""Classes stay small: at most 25 methods and 15 data members. Larger public fronts are listed here."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = [ROOT / "cpp" / "src", ROOT / "cpp" / "include" / "hmc"]
MAX_METHODS, MAX_MEMBERS = 25, 15

# Public fronts: many shallow calls of the same few functions.
FRONTS = {"communicator.h:Communicator", "communicator.h:Member", "path.h:Path", "peer.h:Peer"}

HEAD = re.compile(r"\b(?:class|struct)\s+(?:HMC_API\s+)?(\w+)(?:\s+final)?(?:\s*:\s*[^;{}()]*)?\s*\{")
TEMPLATE_ARGUMENTS = re.compile(r"<[^<>]*>")
# A pointer to a C function of a library that is found at run time: a row of a table, neither behaviour nor state of the class.
# Functions of this project are all in a namespace, so none of them can be written like this.
LIBRARY_FUNCTION = re.compile(r"decltype\(&::\w+\) \w+ = nullptr$")
NO_MEMBER = ("using ", "friend ", "typedef ", "static_assert", "enum ", "class ", "struct ", "union ", "template")


def without_comments(text: str) -> str:
    text = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)
    text = re.sub(r"'(?:\\.|[^'\\\n])'", "' '", text)
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    return re.sub(r"^\s*#[^\n]*", "", text, flags=re.MULTILINE)


def body_end(text: str, start: int) -> int:
    """The index of the brace that closes the one before `start`."""
    depth = 1
    for at in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return at
    return len(text)


def statements(body: str) -> list[str]:
    """What a class declares, function bodies and nested types cut out."""
    found, current, at = [], "", 0
    while at < len(body):
        if body[at] == "{":
            at = body_end(body, at + 1)
            is_type = re.match(r"\s*(?:enum|class|struct|union)\b", current.replace("public:", "").replace("private:", ""))
            rest = body[at + 1 :].lstrip()
            if not is_type and "(" in TEMPLATE_ARGUMENTS.sub("", current) and not rest.startswith((";", ",", "{", ")")):
                found.append(current)
                current = ""
        elif body[at] == ";":
            found.append(current)
            current = ""
        else:
            current += body[at]
        at += 1
    return found


def count(name: str, body: str) -> tuple[int, int]:
    methods = members = 0
    for raw in statements(body):
        statement = re.sub(r"\b(?:public|protected|private)\s*:", " ", raw)
        statement = " ".join(re.sub(r"\[\[.*?\]\]", " ", statement).split())
        is_template = statement.startswith("template")
        while TEMPLATE_ARGUMENTS.search(statement):
            statement = TEMPLATE_ARGUMENTS.sub("", statement)
        statement = statement.removeprefix("template").strip() if is_template else statement
        if not statement or statement.startswith(NO_MEMBER) or LIBRARY_FUNCTION.match(statement):
            continue
        declared = statement.split("=")[0] if "operator" not in statement else statement
        if "(" in declared:
            made_or_unmade = re.match(rf"(?:explicit |constexpr |virtual |inline )*~?{name}\s*\(", declared)
            if not made_or_unmade and not statement.endswith("= delete"):
                methods += 1
        elif not statement.startswith("static "):
            members += 1 + re.sub(r"\([^()]*\)|=[^,(]*", "", statement).count(",")
    return methods, members


def classes(path: Path, root: Path) -> dict[str, tuple[int, int]]:
    text = without_comments(path.read_text())
    return {
        f"{path.relative_to(root)}:{head[1]}": count(head[1], text[head.end() : body_end(text, head.end())])
        for head in HEAD.finditer(text)
    }


def large() -> dict[str, tuple[int, int]]:
    every: dict[str, tuple[int, int]] = {}
    for root in FOLDERS:
        for path in sorted([*root.rglob("*.h"), *root.rglob("*.cc")]):
            every |= classes(path, root)
    return {name: size for name, size in every.items() if size[0] > MAX_METHODS or size[1] > MAX_MEMBERS}


def test_classes_stay_small() -> None:
    found = [
        f"{name}: {methods} methods, {members} data members" for name, (methods, members) in large().items() if name not in FRONTS
    ]
    assert not found, "split by concept: " + "; ".join(found)


def test_every_listed_front_is_large() -> None:
    small = FRONTS - large().keys()
    assert not small, "small now, remove from the list: " + ", ".join(sorted(small))


def test_the_count_itself() -> None:
    example = """
    // void commented();
    class Example final : public Other<int, 2> {
     public:
      Example() = default;
      explicit Example(int a) : a_(a), b_{a} {}
      ~Example();
      Example(const Example&) = delete;
      Status post(const Op& op, Completion* done) { if (a_) { return f({1, 2}); } return {}; }
      template <class T> void each(T turn);
      [[nodiscard]] bool ready() const noexcept;
      Status send(int type, std::vector<int> fds = {}) override;
      bool operator==(const Example& other) const = default;
     private:
      struct Inner { int x = 0; void g(); };
      enum class State : std::uint8_t { one, two };
      using Map = std::map<int, std::function<void(int)>>;
      static constexpr int limit = 5;
      std::function<void(int)> then;
      std::map<int, std::pair<int, int>> pairs_;
      int a_ = f(3), b_{4};
      std::vector<Run> runs_ = {};
      decltype(&::ibv_open_device) open_device = nullptr;
      decltype(&::hmc::local_data) not_a_library = nullptr;
    };
    """
    text = without_comments(example)
    head = HEAD.search(text)
    assert head is not None
    assert count("Example", text[head.end() : body_end(text, head.end())]) == (6, 5)
