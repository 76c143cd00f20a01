// A breadth-first search through the states of a model that cannot be copied: a state is reached
// again by playing the events that led to it, which are few.
//
// A Model is made of a Config. It has events() that can happen now; play(), which returns the rule
// that was broken, or nothing; answered(): the last event has sent something, which may be lost;
// finished(); progress(), which grows when the job advances, and only then; and key() of its state.
// An Event has is_fault() and `lost`.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace sluice::exhaustive {

struct Found {
  std::size_t states = 0;
  std::string violation;
  std::string path;  // of events that led there
};

template <class Model, class Event, class Config>
Found explore_by_replay(const Config& config, std::string (*describe)(const Event&)) {
  struct Node {
    std::size_t parent = 0;
    Event event;
  };
  std::vector<Node> nodes{{}};
  std::unordered_map<std::string, std::size_t> seen{{Model(config).key(), 0}};
  const auto replay = [&](std::size_t node) {
    std::vector<Event> played;
    for (std::size_t at = node; at != 0; at = nodes[at].parent) played.push_back(nodes[at].event);
    auto model = std::make_unique<Model>(config);
    for (std::size_t i = played.size(); i-- != 0;) model->play(played[i]);
    return model;
  };
  const auto path_to = [&](std::size_t node) {
    std::string path;
    for (; node != 0; node = nodes[node].parent) path = describe(nodes[node].event) + path;
    return path;
  };
  for (std::size_t at = 0; at < nodes.size(); ++at) {
    auto model = replay(at);
    const int before = model->progress();
    const std::string key = model->key();
    bool leads_on = model->finished();
    std::vector<Event> events = model->events();
    for (std::size_t i = 0; i < events.size(); ++i) {
      if (model == nullptr) model = replay(at);
      const Event event = events[i];
      if (const std::string broken = model->play(event); !broken.empty())
        return {seen.size(), broken, path_to(at) + describe(event)};
      if (model->answered() && !event.lost) {  // or the answers are lost
        events.push_back(event);
        events.back().lost = true;
      }
      leads_on |= !event.is_fault() && model->progress() > before;
      std::string next = model->key();
      if (next == key) continue;  // nothing has happened: the next event needs no fresh one
      if (seen.emplace(std::move(next), nodes.size()).second) nodes.push_back({at, event});
      model.reset();
    }
    if (!leads_on)
      return {seen.size(), "nobody can do anything, and something is missing", path_to(at)};
  }
  return {seen.size(), "", ""};
}

}  // namespace sluice::exhaustive
