// The updates, compiled once per instruction set as core/fold.cc is.
#include "aggregator/store/optimizer.h"

#include <cmath>
#include <string>

#include "aggregator/base/check.h"
#include "aggregator/store/update_scalars.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "aggregator/store/optimizer.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "aggregator/core/fold_convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::agg::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// a * b + c, rounded once. Targets without such an instruction do it lane by lane: the bytes must
// not depend on the machine.
template <class D>
HWY_INLINE hn::Vec<D> fused([[maybe_unused]] D d, hn::Vec<D> a, hn::Vec<D> b, hn::Vec<D> c) {
#if HWY_NATIVE_FMA
  return hn::MulAdd(a, b, c);
#else
  HWY_ALIGN float lanes_a[hn::MaxLanes(D())], lanes_b[hn::MaxLanes(D())],
      lanes_c[hn::MaxLanes(D())];
  hn::Store(a, d, lanes_a);
  hn::Store(b, d, lanes_b);
  hn::Store(c, d, lanes_c);
  for (std::size_t lane = 0; lane < hn::Lanes(d); ++lane)
    lanes_c[lane] = std::fma(lanes_a[lane], lanes_b[lane], lanes_c[lane]);
  return hn::Load(d, lanes_c);
#endif
}

using Elements = UpdateElements;
using Scalars = UpdateScalars;

template <class D>
HWY_INLINE hn::Vec<D> load_pushed(D d, const Elements& at, const Scalars& scalars, std::size_t i) {
  const auto pushed = Float32Format::load(d, at.pushed + i * sizeof(float));
  return hn::Div(pushed, hn::Set(d, scalars.divisor));
}

template <class D>
HWY_INLINE hn::Vec<D> load_gradient(D d, const Elements& at, const Scalars& scalars,
                                    std::size_t i) {
  const auto gradient = load_pushed(d, at, scalars, i);
  if (scalars.decay == 0) return gradient;
  return fused(d, hn::LoadU(d, at.parameters + i), hn::Set(d, scalars.decay), gradient);
}

// The lerp starts from the nearer of the two ends.
template <class D>
HWY_INLINE hn::Vec<D> interpolated(D d, hn::Vec<D> from, hn::Vec<D> to, float share) {
  const bool near = share < 0.5f;
  return fused(d, hn::Set(d, near ? share : share - 1), hn::Sub(to, from), near ? from : to);
}

struct Delta {
  template <class D>
  static HWY_INLINE void update(D d, const Elements& at, const Scalars& scalars, std::size_t i) {
    const auto sum = hn::Add(hn::LoadU(d, at.parameters + i), load_pushed(d, at, scalars, i));
    hn::StoreU(sum, d, at.parameters + i);
  }
};

struct Sgd {
  template <class D>
  static HWY_INLINE void update(D d, const Elements& at, const Scalars& scalars, std::size_t i) {
    auto direction = load_gradient(d, at, scalars, i);
    if (at.first != nullptr) {
      auto momentum = direction;  // of the first update: no dampening
      if (!scalars.is_first) {
        const auto kept = hn::Mul(hn::LoadU(d, at.first + i), hn::Set(d, scalars.first_keep));
        momentum = fused(d, direction, hn::Set(d, scalars.first_take), kept);
      }
      hn::StoreU(momentum, d, at.first + i);
      direction = scalars.nesterov ? fused(d, momentum, hn::Set(d, scalars.first_keep), direction)
                                   : momentum;
    }
    hn::StoreU(fused(d, direction, hn::Set(d, scalars.minus_rate), hn::LoadU(d, at.parameters + i)),
               d, at.parameters + i);
  }
};

struct Adam {
  template <class D>
  static HWY_INLINE void update(D d, const Elements& at, const Scalars& scalars, std::size_t i) {
    const auto gradient = load_gradient(d, at, scalars, i);
    const auto zero = hn::Zero(d);
    const auto old_first = scalars.is_first ? zero : hn::LoadU(d, at.first + i);
    const auto old_second = scalars.is_first ? zero : hn::LoadU(d, at.second + i);
    const auto first = scalars.interpolates
                           ? interpolated(d, old_first, gradient, scalars.first_take)
                           : fused(d, gradient, hn::Set(d, scalars.first_take),
                                   hn::Mul(old_first, hn::Set(d, scalars.first_keep)));
    const auto second = fused(d, hn::Mul(hn::Set(d, scalars.second_take), gradient), gradient,
                              hn::Mul(old_second, hn::Set(d, scalars.second_keep)));
    hn::StoreU(first, d, at.first + i);
    hn::StoreU(second, d, at.second + i);
    const auto root = hn::Div(hn::Sqrt(second), hn::Set(d, scalars.root_divisor));
    const auto denominator = hn::Add(root, hn::Set(d, scalars.epsilon));
    const auto change = hn::Div(hn::Mul(hn::Set(d, scalars.minus_rate), first), denominator);
    hn::StoreU(hn::Add(hn::LoadU(d, at.parameters + i), change), d, at.parameters + i);
  }
};

template <class Rule, class D>
void update_lanes(D d, const Elements& at, const Scalars& scalars, std::size_t begin,
                  std::size_t end) {
  for (std::size_t i = begin; i < end; i += hn::Lanes(d)) Rule::update(d, at, scalars, i);
}

template <class Rule>
void update_all(const Elements& at, const Scalars& scalars, std::size_t elem_count) {
  const hn::ScalableTag<float> d;
  const std::size_t whole = elem_count - elem_count % hn::Lanes(d);
  update_lanes<Rule>(d, at, scalars, 0, whole);
  update_lanes<Rule>(hn::CappedTag<float, 1>(), at, scalars, whole, elem_count);
}

void update_any(UpdateRule rule, const Elements& at, const Scalars& scalars,
                std::size_t elem_count) {
  if (rule == UpdateRule::kDelta) return update_all<Delta>(at, scalars, elem_count);
  if (rule == UpdateRule::kSgd) return update_all<Sgd>(at, scalars, elem_count);
  return update_all<Adam>(at, scalars, elem_count);
}

}  // namespace sluice::agg::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::agg {

HWY_EXPORT(update_any);

namespace {

Status refuse(const char* name, double value, const char* allowed) {
  return {StatusCode::kInvalidArgument,
          std::string(name) + " = " + std::to_string(value) + ": must be " + allowed};
}

}  // namespace

Status check_update(const UpdateOptions& options) {
  const auto is_share = [](double value) { return value >= 0 && value < 1; };
  if (!(options.weight_decay >= 0)) return refuse("weight_decay", options.weight_decay, ">= 0");
  if (!(options.momentum >= 0)) return refuse("momentum", options.momentum, ">= 0");
  if (!is_share(options.beta1)) return refuse("beta1", options.beta1, "in [0, 1)");
  if (!is_share(options.beta2)) return refuse("beta2", options.beta2, "in [0, 1)");
  if (!(options.epsilon >= 0)) return refuse("epsilon", options.epsilon, ">= 0");
  if (options.nesterov && (options.momentum == 0 || options.dampening != 0))
    return refuse("momentum", options.momentum, "above 0, with no dampening, for nesterov");
  return {};
}

void apply_update(const UpdateOptions& options, const UpdateStep& step, float* parameters,
                  std::span<float* const> states, const std::uint8_t* pushed,
                  std::size_t elem_count) noexcept {
  CHECK(states.size() == options.state_count() && step.ordinal != 0 && step.divisor != 0);
  const UpdateElements at{.parameters = parameters,
                          .first = states.empty() ? nullptr : states[0],
                          .second = states.size() < 2 ? nullptr : states[1],
                          .pushed = pushed};
  HWY_DYNAMIC_DISPATCH(update_any)(options.rule, at, scalars_of(options, step), elem_count);
}

}  // namespace sluice::agg
#endif  // HWY_ONCE
