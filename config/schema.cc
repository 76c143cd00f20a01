#include "config/schema.h"

#include <algorithm>
#include <type_traits>

#include "aggregator/base/limits.h"
#include "aggregator/base/policy_text.h"
#include "config/text.h"

namespace sluice::config {
namespace {

constexpr double kMaxSeed = 9.2e18;        // TOML integers are signed, 64 bits
constexpr double kMaxMemoryMib = 1 << 20;  // 1 TiB
constexpr double kMaxQueueKib = 1 << 16;   // 64 MiB
constexpr double kMaxPathBytes = 107;      // of a UNIX socket's name, without its final zero

constexpr Form kAnyText{};
constexpr Form kLabel{is_label, "letters, digits, '_' and '-'"};
constexpr Form kPrintable{is_printable, "printable ASCII"};
constexpr Form kName{[](std::string_view text) { return text.empty() || is_label(text); },
                     "letters, digits, '_' and '-'"};
constexpr Form kMode{is_file_mode, "an octal number such as 0660"};
constexpr Form kPci{[](std::string_view text) { return text.empty() || is_pci_address(text); },
                    "a PCI address such as 0000:01:00.0"};
constexpr Form kHostPort{is_host_and_port, "ADDRESS:PORT with a numeric address, or empty"};

// Of the table that is read: a [[job]] or [policy].
PolicyOptions& policy_of(Target target) {
  return target.job ? target.job->policy : target.config->policy;
}

constexpr KeySpec kSchema[] = {
    {Section::kAppliance, "address", "", 0, 0,
     "IPv4 address of the appliance with its network's prefix length. It must not be an address of "
     "this host's kernel.",
     [](Target t) -> Field { return &t.config->appliance.address; }},
    {Section::kAppliance, "address6", "", 0, 0,
     "IPv6 address with prefix length. Unset: IPv4 only.",
     [](Target t) -> Field { return &t.config->appliance.address6; }},
    {Section::kAppliance, "mac", "", 0, 0,
     "Ethernet address of the appliance on all its ports. Unset: made from the IPv4 address.",
     [](Target t) -> Field { return &t.config->appliance.mac; }},
    {Section::kAppliance, "port", "", 1, 65535 - kMaxShards,
     "UDP port of JOIN. Data of shard s goes to this port + 1 + s.",
     [](Target t) -> Field { return &t.config->appliance.port; }},
    {Section::kAppliance, "shards", "", 1, kMaxShards,
     "Number of polling threads; each owns a share of every job's chunks.",
     [](Target t) -> Field { return &t.config->appliance.shards; }},
    {Section::kAppliance, "secret", "", 0, 256,
     "Secret that workers prove to know when they join. Empty: whoever reaches the port may join.",
     [](Target t) -> Field { return &t.config->appliance.secret; }, kAnyText, true},
    {Section::kAppliance, "secret_file", "", 0, 4096,
     "File that holds the secret, instead of `secret`, on its first line; older secrets on up to "
     "three more lines are still good. It must not be readable by everyone.",
     [](Target t) -> Field { return &t.config->appliance.secret_file; }},
    {Section::kAppliance, "polling", "", 0, 0,
     "busy: spin for ever, for boxes with a core a shard. adaptive: sleep until a packet comes.",
     [](Target t) -> Field { return &t.config->appliance.polling; }},
    {Section::kAppliance, "log_level", "", 0, 0, "Least severe messages that are logged.",
     [](Target t) -> Field { return &t.config->appliance.log_level; }},
    {Section::kAppliance, "memory_mib", "MiB", 64, kMaxMemoryMib,
     "Memory for packet buffers and rings, allocated at start.",
     [](Target t) -> Field { return &t.config->appliance.memory_mib; }},
    {Section::kAppliance, "hugepages", "", 0, 0,
     "Take that memory from hugepages, which the host must have reserved. Needed by pci ports that "
     "no IOMMU is before.",
     [](Target t) -> Field { return &t.config->appliance.hugepages; }},

    {Section::kPort, "name", "", 1, 31, "Name in logs and metrics.",
     [](Target t) -> Field { return &t.port->name; }, kLabel},
    {Section::kPort, "type", "", 0, 0,
     "vhost-user: a UNIX socket for a process or a virtual machine of this host. af_packet, "
     "af_xdp: "
     "a network interface of the kernel. tap: one that the port creates, for this host itself. "
     "pci: a NIC driven by DPDK.",
     [](Target t) -> Field { return &t.port->type; }},
    {Section::kPort, "path", "", 0, kMaxPathBytes, "vhost-user: the socket that the port creates.",
     [](Target t) -> Field { return &t.port->path; }},
    {Section::kPort, "interface", "", 0, 15, "af_packet, af_xdp, tap: the interface's name.",
     [](Target t) -> Field { return &t.port->interface; }},
    {Section::kPort, "pci", "", 0, 12, "pci: the NIC's address.",
     [](Target t) -> Field { return &t.port->pci; }, kPci},
    {Section::kPort, "mtu", "bytes", 576, kMaxDatagramBytes,
     "Largest IP packet. It must carry limits.chunk_bytes_max, where that is given, and its "
     "headers.",
     [](Target t) -> Field { return &t.port->mtu; }},
    {Section::kPort, "rate_mbps", "Mb/s", 0, 1e6,
     "Rate of the link, to which egress is shaped so that queues stand here, where priorities "
     "work. "
     "0: no shaping.",
     [](Target t) -> Field { return &t.port->rate_mbps; }},
    {Section::kPort, "queue_kib", "KiB", 64, kMaxQueueKib,
     "Most bytes that wait to leave by this port; beyond, the least urgent frames are dropped.",
     [](Target t) -> Field { return &t.port->queue_kib; }},
    {Section::kPort, "mark_above_kib", "KiB", 0, kMaxQueueKib,
     "Frames that can be marked get the congestion mark (ECN) when more than this waits before "
     "them. 0: never.",
     [](Target t) -> Field { return &t.port->mark_above_kib; }},

    {Section::kPortFault, "rx_drop", "", 0, 1,
     "For tests: share of received frames that the port loses.",
     [](Target t) -> Field { return &t.port->fault.rx_drop; }},
    {Section::kPortFault, "tx_drop", "", 0, 1,
     "For tests: share of sent frames that the port loses.",
     [](Target t) -> Field { return &t.port->fault.tx_drop; }},
    {Section::kPortFault, "duplicate", "", 0, 1,
     "For tests: share of frames that the port delivers twice.",
     [](Target t) -> Field { return &t.port->fault.duplicate; }},
    {Section::kPortFault, "reorder", "", 0, 1,
     "For tests: share of frames that the port holds back behind later ones.",
     [](Target t) -> Field { return &t.port->fault.reorder; }},
    {Section::kPortFault, "seed", "", 0, kMaxSeed,
     "Seed of the faults; the same seed, the same faults.",
     [](Target t) -> Field { return &t.port->fault.seed; }},

    {Section::kClass, "index", "", 0, kClasses - 1, "The egress class; 0 is the most urgent.",
     [](Target t) -> Field { return &t.egress_class->index; }},
    {Section::kClass, "share", "", 0.001, 0.999,
     "Share of the bytes of every port that this class gets while it has frames waiting, however "
     "many more urgent ones there are; as large a part of the port's queue is kept for it.",
     [](Target t) -> Field { return &t.egress_class->share; }},

    {Section::kRule, "class", "", 0, kClasses - 1, "Where such frames go; 0 is the most urgent.",
     [](Target t) -> Field { return &t.rule->egress_class; }},
    {Section::kRule, "dscp", "", 0, 63, "Condition: the code point in the IP header.",
     [](Target t) -> Field { return &t.rule->dscp; }},
    {Section::kRule, "pcp", "", 0, 7,
     "Condition: the priority in the frame's (outermost) 802.1Q tag.",
     [](Target t) -> Field { return &t.rule->pcp; }},
    {Section::kRule, "protocol", "", 0, 0, "Condition: what IP carries.",
     [](Target t) -> Field { return &t.rule->protocol; }},
    {Section::kRule, "port", "", 1, 65535,
     "Condition, beside `protocol`: the source's or the destination's port.",
     [](Target t) -> Field { return &t.rule->port; }},
    {Section::kRule, "prefix", "", 0, 0, "Condition: the network of the source or the destination.",
     [](Target t) -> Field { return &t.rule->prefix; }},

    {Section::kLimits, "jobs", "", 1, kMaxJobs, "Most jobs at one time.",
     [](Target t) -> Field { return &t.config->limits.jobs; }},
    {Section::kLimits, "workers_per_job", "", 1, kMaxWorkers, "Largest world size of a job.",
     [](Target t) -> Field { return &t.config->limits.workers_per_job; }},
    {Section::kLimits, "job_memory_mib", "MiB", 0, kMaxMemoryMib,
     "Most memory for one job's slots, about twice its gradients in float32; a job that needs more "
     "is refused with the numbers. 0: as much as total_memory_mib.",
     [](Target t) -> Field { return &t.config->limits.job_memory_mib; }},
    {Section::kLimits, "total_memory_mib", "MiB", 0, kMaxMemoryMib,
     "Most memory for the slots of all jobs together. 0: by the machine, three quarters of what is "
     "free at the start.",
     [](Target t) -> Field { return &t.config->limits.total_memory_mib; }},
    {Section::kLimits, "chunk_bytes_max", "bytes", 0, kMaxChunkBytes,
     "Largest chunk that a job may ask for; a multiple of 64. 0: by the ports, the most that the "
     "smallest mtu among them carries.",
     [](Target t) -> Field { return &t.config->limits.chunk_bytes_max; }},
    {Section::kLimits, "address_jobs", "", 0, kMaxJobs,
     "Most jobs at one time that workers of one address have founded. 0: as many as `jobs`.",
     [](Target t) -> Field { return &t.config->limits.address_jobs; }},
    {Section::kLimits, "address_memory_mib", "MiB", 0, kMaxMemoryMib,
     "Most memory for the slots of those. 0: as much as total_memory_mib.",
     [](Target t) -> Field { return &t.config->limits.address_memory_mib; }},
    {Section::kLimits, "prefix_jobs", "", 0, kMaxJobs,
     "Most jobs at one time whose names are alike up to the first slash, as those of a team. 0: as "
     "many as `jobs`.",
     [](Target t) -> Field { return &t.config->limits.prefix_jobs; }},
    {Section::kLimits, "prefix_memory_mib", "MiB", 0, kMaxMemoryMib,
     "Most memory for the slots of those. 0: as much as total_memory_mib.",
     [](Target t) -> Field { return &t.config->limits.prefix_memory_mib; }},
    {Section::kLimits, "member_timeout_s", "s", 0.5, 86400,
     "A worker silent for this long is taken for dead.",
     [](Target t) -> Field { return &t.config->limits.member_timeout_s; }},
    {Section::kLimits, "resync_hold_s", "s", 0.5, 3600,
     "The longest that a job's steps wait for a worker that fetches another one's parameters and "
     "optimizer state; a worker that needs longer is refused.",
     [](Target t) -> Field { return &t.config->limits.resync_hold_s; }},
    {Section::kLimits, "store_keep_s", "s", 0, 604800,
     "How long a parameter store that all workers have left or lost is kept for workers that come "
     "again, of the same run or another; a job whose ranks are all there and that finds no room "
     "ends "
     "it sooner, but not within two minutes. 0: not at all.",
     [](Target t) -> Field { return &t.config->limits.store_keep_s; }},

#define X(name, member, type, kinds, only_requeue, thousandths, least, most, words, help) \
  {Section::kPolicy, name, "", 0, 0, help, [](Target t) -> Field { return &policy_of(t); }},
    SLUICE_POLICY_FIELDS(X)
#undef X

        {Section::kJob, "name", "", 1, kMaxJobNameBytes,
         "Name of the jobs, as the workers give it.",
         [](Target t) -> Field { return &t.job->name; }, kPrintable},
    {Section::kJob, "reproducible", "", 0, 0,
     "Sum in the order of ranks, so that equal gradients give equal bits in every run, whether or "
     "not the workers ask for it. Needs policy sync and memory for all workers' gradients.",
     [](Target t) -> Field { return &t.job->reproducible; }},

    {Section::kMetrics, "address", "", 0, 64, "Where Prometheus scrapes. Empty: no endpoint.",
     [](Target t) -> Field { return &t.config->metrics.address; }, kHostPort},
    {Section::kMetrics, "certificate", "", 0, 4096,
     "File with the server's certificate, those between it and its authority, and its key, each as "
     "PEM: the pages are HTTPS then. A renewed file is used from the next connection on. "
     "Empty: HTTP.",
     [](Target t) -> Field { return &t.config->metrics.certificate; }},
    {Section::kMetrics, "password_file", "", 0, 4096,
     "File with the line USER:PASSWORD, which /metrics and / ask for (HTTP basic authentication); "
     "/healthz and /readyz are for everybody. Empty: no password.",
     [](Target t) -> Field { return &t.config->metrics.password_file; }},

    {Section::kControl, "socket", "", 0, kMaxPathBytes,
     "Local socket for sluicectl. Empty: control.sock in the folder that systemd gives the service "
     "(/run/sluice), and none where nobody gives a folder.",
     [](Target t) -> Field { return &t.config->control.socket; }},
    {Section::kControl, "owner", "", 0, 31,
     "User that the socket's file belongs to. Empty: the one that sluiced runs as.",
     [](Target t) -> Field { return &t.config->control.owner; }, kName},
    {Section::kControl, "group", "", 0, 31, "Group of the socket's file. Empty: that of sluiced.",
     [](Target t) -> Field { return &t.config->control.group; }, kName},
    {Section::kControl, "mode", "", 3, 4,
     "Mode of the socket's file: who may write to it may end jobs. 0660 lets the group.",
     [](Target t) -> Field { return &t.config->control.mode; }, kMode},

    {Section::kForwarding, "enabled", "", 0, 0,
     "Forward frames for other hosts between the ports by learned Ethernet address.",
     [](Target t) -> Field { return &t.config->forwarding.enabled; }},
    {Section::kForwarding, "mac_table_entries", "", 16, 1 << 20, "Most learned addresses.",
     [](Target t) -> Field { return &t.config->forwarding.mac_table_entries; }},
    {Section::kForwarding, "mac_age_s", "s", 1, 86400,
     "A learned address unused for this long is forgotten.",
     [](Target t) -> Field { return &t.config->forwarding.mac_age_s; }},
};

template <class T>
constexpr bool kIsInteger = std::is_same_v<T, std::uint16_t> || std::is_same_v<T, std::uint32_t> ||
                            std::is_same_v<T, std::uint64_t>;

template <class T>
constexpr bool kIsOptional = false;
template <class T>
constexpr bool kIsOptional<std::optional<T>> = true;

template <class T>
struct ValueOf {
  using type = T;
};
template <class T>
struct ValueOf<std::optional<T>> {
  using type = T;
};
// What a field holds when it holds something.
template <class T>
using value_of = typename ValueOf<T>::type;

std::string whole(double value) { return std::to_string(static_cast<std::uint64_t>(value)); }

std::string describe_range(std::string what, const std::string& min, const std::string& max,
                           std::string_view unit) {
  what.append(" from ").append(min).append(" to ").append(max);
  if (!unit.empty()) what.append(" ").append(unit);
  return what;
}

std::string describe_string(const KeySpec& spec) {
  if (!spec.form.words.empty() && spec.form.matches("")) return std::string(spec.form.words);
  std::string text = describe_range("a string", whole(spec.min), whole(spec.max), "bytes");
  if (!spec.form.words.empty()) text.append(": ").append(spec.form.words);
  return text;
}

template <class Enum>
std::string describe_choice() {
  std::string text = "one of";
  for (const std::string_view name : names_of(Enum{}))
    text += (text.size() > 6 ? ", " : " ") + in_quotes(name);
  return text;
}

template <class T>
std::string literal_of(const T& value) {
  if constexpr (std::is_same_v<T, bool>)
    return value ? "true" : "false";
  else if constexpr (kIsInteger<T>)
    return std::to_string(value);
  else if constexpr (std::is_same_v<T, double>)
    return to_text(value);
  else if constexpr (std::is_same_v<T, std::string>)
    return in_quotes(value);
  else if constexpr (std::is_enum_v<T>)
    return in_quotes(label_of(value));
  else
    return in_quotes(to_text(value));
}

}  // namespace

std::span<const KeySpec> schema() { return kSchema; }

std::string_view section_name(Section section) {
  switch (section) {
    case Section::kAppliance: return "appliance";
    case Section::kPort: return "port";
    case Section::kPortFault: return "port.fault";
    case Section::kClass: return "class";
    case Section::kRule: return "rule";
    case Section::kLimits: return "limits";
    case Section::kPolicy: return "policy";
    case Section::kJob: return "job";
    case Section::kMetrics: return "metrics";
    case Section::kControl: return "control";
    case Section::kForwarding: return "forwarding";
  }
  return "";
}

std::string describe_type(const KeySpec& spec) {
  Config config;
  PortConfig port;
  JobConfig job;
  ClassConfig egress_class;
  RuleConfig rule;
  return std::visit(
      [&](auto* value) -> std::string {
        using T = value_of<std::remove_pointer_t<decltype(value)>>;
        if constexpr (std::is_same_v<T, bool>)
          return "true or false";
        else if constexpr (kIsInteger<T>)
          return describe_range("an integer", whole(spec.min), whole(spec.max), spec.unit);
        else if constexpr (std::is_same_v<T, double>)
          return describe_range("a number", to_text(spec.min), to_text(spec.max), spec.unit);
        else if constexpr (std::is_same_v<T, std::string>)
          return describe_string(spec);
        else if constexpr (std::is_same_v<T, Ipv4Prefix>)
          return "an IPv4 address with prefix length such as \"10.77.0.1/24\"";
        else if constexpr (std::is_same_v<T, Ipv6Prefix>)
          return "an IPv6 address with prefix length such as \"fd00::1/64\"";
        else if constexpr (std::is_same_v<T, IpPrefix>)
          return "a network such as \"10.77.0.0/24\" or \"fd00::/64\"";
        else if constexpr (std::is_same_v<T, MacAddress>)
          return "an Ethernet address such as \"02:51:0a:4d:00:01\"";
        else if constexpr (std::is_same_v<T, PolicyOptions>)
          return policy_range(policy_field(spec), 0, false);
        else
          return describe_choice<T>();
      },
      spec.field({&config, &port, &job, &egress_class, &rule}));
}

const PolicyField& policy_field(const KeySpec& spec) {
  return *std::ranges::find(kPolicyFields, spec.key, &PolicyField::name);
}

std::string literal(const KeySpec& spec, const Field& field) {
  return std::visit(
      [&](const auto* value) -> std::string {
        using T = std::remove_cv_t<std::remove_pointer_t<decltype(value)>>;
        if constexpr (std::is_same_v<T, PolicyOptions>) {
          const PolicyField& option = policy_field(spec);
          const std::string text = policy_text(option, option.get(*value));
          return policy_word(option, text) ? in_quotes(text) : text;
        } else if constexpr (kIsOptional<T>)
          return *value ? literal_of(**value) : "";
        else
          return literal_of(*value);
      },
      field);
}

}  // namespace sluice::config
