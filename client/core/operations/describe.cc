#include "client/core/operations/describe.h"

namespace sluice::client {
namespace {

const char* name_of(wire::OperationKind kind) noexcept {
  switch (kind) {
    case wire::OperationKind::kAllReduce: return "all_reduce";
    case wire::OperationKind::kReduceScatter: return "reduce_scatter";
    case wire::OperationKind::kAllGather: return "all_gather";
    case wire::OperationKind::kBroadcast: return "broadcast";
    case wire::OperationKind::kReduce: return "reduce";
    case wire::OperationKind::kBarrier: break;
  }
  return "barrier";
}

const char* name_of(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::kFloat32: return "float32";
    case Dtype::kFloat16: return "float16";
    case Dtype::kBfloat16: return "bfloat16";
    case Dtype::kBytes:
    case Dtype::kInt8: break;
  }
  return "bytes";
}

}  // namespace

std::string describe(const wire::Description& what) {
  std::string text = name_of(what.kind);
  if (what.kind == wire::OperationKind::kBarrier) return text;
  text += " of " + std::to_string(what.bytes / dtype_bytes(what.dtype)) + " " + name_of(what.dtype);
  if (what.wire != what.dtype) text += std::string(" as ") + name_of(what.wire);
  if (what.reduction == wire::Reduction::kMean) text += ", averaged";
  if (wire::has_parts(what.kind)) text += " a rank";
  if (!wire::has_root(what.kind)) return text;
  text += what.kind == wire::OperationKind::kReduce ? " to rank " : " from rank ";
  return text + std::to_string(what.root);
}

std::string describe(const wire::Behind& behind, bool first) {
  return std::string(first ? ": " : ", ") + "rank " + std::to_string(behind.rank) +
         " has not called it and is " + std::to_string(behind.operations) + " operations behind";
}

}  // namespace sluice::client
