// batch() of Member and Communicator: a block of a with statement whose collectives go together.
#include <functional>
#include <optional>
#include <utility>

#include "hmc/batch.h"
#include "members.h"

namespace hmc::bindings {
namespace {

class BatchBlock {
 public:
  // `group`: the Member or Communicator, which outlives the batch.
  BatchBlock(py::object group, std::function<Result<Batch>()> open, std::optional<double> timeout)
      : group_(std::move(group)), open_(std::move(open)), timeout_(timeout) {
    static_cast<void>(deadline_of(timeout));  // refused here, not at the block's end
  }

  void enter() {
    if (entered_) refuse("a Batch is entered once; call batch() for another one");
    batch_ = check(open_());
    entered_ = true;
  }
  void leave(bool failed) {
    Batch batch = taken();
    if (failed) batch.discard();
    if (!batch.valid()) return;
    const Deadline deadline = deadline_of(timeout_);
    interruptible([&] { return batch.run(deadline); });
  }
  Work start() {
    Batch batch = taken();
    return interruptible([&] { return batch.start(); });  // waits for streams
  }
  [[nodiscard]] std::size_t size() const noexcept { return batch_.size(); }

 private:
  // With the GIL: of two threads that end the batch, one has it.
  Batch taken() noexcept { return std::exchange(batch_, Batch()); }

  const py::object group_;
  const std::function<Result<Batch>()> open_;
  const std::optional<double> timeout_;
  Batch batch_;
  bool entered_ = false;
};

template <class T, class Class>
void bind_batch_of(Class& cls) {
  cls.def(
      "batch",
      [](const py::object& self, const std::optional<double>& timeout) {
        const T* const group = &self.cast<const T&>();
        return BatchBlock(self, [group] { return group->batch(); }, timeout);
      },
      py::arg("timeout") = py::none(),
      "A Batch, for a with statement: collectives that this thread calls in its block are checked and collected, and carried out "
      "together at its end, in any order. timeout: seconds for all of them.");
}

}  // namespace

void bind_batch(py::module_& module, py::class_<Member, MemberHolder>& member, py::class_<Communicator, CommunicatorHolder>& comm) {
  py::class_<BatchBlock>(module, "Batch",
                         "Collectives that go together: the block of a with statement. Blocking collectives that its thread calls "
                         "on the Communicator return at once, and their results are there when the block has ended. An exception "
                         "in the block discards them.")
      .def("__enter__",
           [](const py::object& self) {
             self.cast<BatchBlock&>().enter();
             return self;
           })
      .def("__exit__",
           [](BatchBlock& self, const py::args& exception) { self.leave(!exception.empty() && !exception[0].is_none()); })
      .def("__len__", &BatchBlock::size)
      .def("start", &BatchBlock::start,
           "Starts all calls, in place of the block's end, and returns one Work for them and the messages. InvalidArgumentError: "
           "there is nothing to start, as the batch was started or has ended.");
  bind_batch_of<Member>(member);
  bind_batch_of<Communicator>(comm);
}

}  // namespace hmc::bindings
