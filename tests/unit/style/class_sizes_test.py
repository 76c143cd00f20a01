"""What counts as a member function, and which classes are reported."""

import unittest

from class_sizes import class_sizes, large_classes

FUNCTIONS = """
  A();
  explicit A(int x) : x_{x}, y_(1) { if (x) { run(); } }
  ~A() override;
  int one(int x = f(1), B b = {}) const noexcept;
  static std::map<int, std::function<void(int)>> two() { return {}; }
  template <class T, int N = (3 > 2)> requires (sizeof(T) < 4) void three(T (&values)[N]);
  auto four() -> decltype(x_) { return x_; }
  [[nodiscard]] virtual int five() = 0;
  bool operator==(const A& other) const { return x_ == other.x_; }
  bool operator()(int x) const;
  explicit operator bool() const;
  char six() { return '}'; }      // a brace in a character
  const char* seven() { return "};" R"(" };)"; }
  noexcept(false) int eight(); /* int no(); */
  int& nine() { return rows_[rows_[0]]; }
 public:
  void ten() noexcept(noexcept(f()));
"""
DATA = """
  A(const A&) = delete;
  A& operator=(A&&) noexcept = default;
  friend bool same(const A& a, const A& b) { return true; }
  using Call = int (*)(int);
  static_assert(sizeof(int) == 4);
  static constexpr auto kCall = [](int x) { return x; };
  enum class Kind : std::uint8_t { kOne = f(1), kTwo };
  std::function<void(int)> call_;
  std::array<int, size(3)> array_{};
  alignas(64) int x_ = f(1'000'000);
  decltype(f()) y_;
  void (*pointer_)(int) = nullptr;
  void (A::*member_)(int);
  int a_{f()}, b_ = 2;
  unsigned bits_ : 3;
  // int no();
#define NO() int no();
"""


class ClassSizes(unittest.TestCase):
    def test_every_form_of_function_counts_once(self):
        members = FUNCTIONS.strip().split("\n")
        for member in members:
            functions = member.strip() != "public:"
            self.assertEqual(class_sizes(f"class A {{\n{member}\n}};")[0].functions, functions,
                             member)
        self.assertEqual(class_sizes("class A {" + DATA + FUNCTIONS + DATA + "};"),
                         [("A", 1, len(members) - 1)])

    def test_what_is_no_function_of_ours_does_not_count(self):
        for member in DATA.strip().split("\n"):
            self.assertEqual(class_sizes(f"class A {{\n{member}\n}};")[0].functions, 0, member)

    def test_each_class_counts_its_own(self):
        found = class_sizes("""
namespace sluice::client {
int outside(int x) { struct Hidden { int f(); }; return x; }
namespace {
template <class T>
class alignas(64) [[nodiscard]] Outer final : public Base<T>, Other {
 public:
  struct Inner {
    int a();
  } inner_;
  union { int x; int (*y)(); };
  int a();
  int b();
};
}  // namespace
extern "C" {
struct Plain { int x; };
}
struct Forward;
struct Forward make(struct Forward* from) { return {}; }
inline namespace v1 { enum class E { kA }; class Last { Last() {} }; }
}  // namespace sluice::client
""")
        self.assertEqual([(name.replace("sluice::client::", ""), line, functions)
                          for name, line, functions in found],
                         [("Outer::Inner", 8, 1), ("Outer", 11, 0), ("Outer", 6, 2),
                          ("Plain", 17, 0), ("v1::Last", 21, 1)])

    def test_a_class_above_its_limit_and_a_row_above_its_class_are_found(self):
        def file(name, functions):
            body = "".join(f"  int f{i}();\n" for i in range(functions))
            return f"a/{name}.h", f"namespace a {{\nclass {name} {{\n{body}}};\n}}\n"
        rows = {"a::B": 45}
        self.assertEqual(large_classes([file("A", 40), file("B", 45)], rows), [])
        for files, expected in (([file("A", 41), file("B", 45)], "a/A.h:2: a::A declares 41"),
                                ([file("B", 46)], "a/B.h:2: a::B declares 46"),
                                ([file("B", 44)], "a::B declares 44"),
                                ([file("B", 40)], "remove its row"),
                                ([file("A", 1)], "remove its row")):
            found = large_classes(files, rows)
            self.assertEqual(len(found), 1, found)
            self.assertIn(expected, found[0])


if __name__ == "__main__":
    unittest.main()
