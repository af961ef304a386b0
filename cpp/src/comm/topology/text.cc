// Topology as text: a line per item, "word name key=value ...", values with spaces in quotes, # to the end of the line is a
// comment.
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <optional>

#include "hmc/topology.h"

namespace hmc {
namespace {

constexpr std::string_view first_line = "hmc-topology 1";

bool plain(std::string_view text) { return !text.empty() && text.find_first_of(" \t\r\n\"\\#=") == std::string_view::npos; }

std::string in_quotes(std::string_view text) {
  if (plain(text)) return std::string(text);
  std::string out = "\"";
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
    } else {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
  }
  return out + "\"";
}

void put(std::string& out, std::string_view key, std::string_view value) {
  if (!value.empty()) out += " " + std::string(key) + "=" + in_quotes(value);
}
void put(std::string& out, std::string_view key, double value) {
  if (value <= 0) return;
  std::array<char, 32> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value);  // the shortest that reads back the same
  put(out, key, std::string_view(text.data(), end.ptr));
}

struct Field {
  std::string key;  // empty: the item's word or name
  std::string value;
};

// One line. nullopt: a quote or an escape that does not end.
std::optional<std::vector<Field>> split(std::string_view line) {
  std::vector<Field> fields;
  std::size_t at = 0;
  const auto take = [&](std::string& into) {
    if (at >= line.size() || line[at] != '"') {
      while (at < line.size() && std::string_view(" \t\r#=\"").find(line[at]) == std::string_view::npos) into += line[at++];
      return true;
    }
    for (++at; at < line.size() && line[at] != '"'; ++at) {
      if (line[at] != '\\') {
        into += line[at];
        continue;
      }
      if (++at == line.size()) return false;
      into += line[at] == 'n' ? '\n' : line[at];
    }
    return at++ < line.size();
  };
  for (;;) {
    while (at < line.size() && std::string_view(" \t\r").find(line[at]) != std::string_view::npos) ++at;
    if (at >= line.size() || line[at] == '#') return fields;
    const std::size_t start = at;
    Field field;
    if (!take(field.value)) return std::nullopt;
    if (at < line.size() && line[at] == '=') {
      ++at;
      field.key = std::move(field.value);
      field.value.clear();
      if (field.key.empty() || !take(field.value)) return std::nullopt;
    }
    if (at == start) return std::nullopt;
    fields.push_back(std::move(field));
  }
}

template <class Number>
bool read(const std::string& text, Number& into) {
  const auto end = std::from_chars(text.data(), text.data() + text.size(), into);
  return end.ec == std::errc() && end.ptr == text.data() + text.size();
}

bool read_rate(const std::string& text, double& into) { return read(text, into) && std::isfinite(into) && into >= 0; }

// Empty: taken. Otherwise what is wrong.
std::string take(TopologyCard& card, const Field& field) {
  const auto malformed = [&] { return "\"" + field.value + "\" is no value for " + field.key; };
  if (field.key == "host") return card.host = field.value, "";
  if (field.key == "model") return card.model = field.value, "";
  if (field.key == "pci") return card.pci = field.value, "";
  if (field.key == "provenance") return card.provenance = field.value, "";
  if (field.key == "bus") return card.bus = field.value, "";
  if (field.key == "process") return read(field.value, card.process) ? "" : malformed();
  if (field.key == "numa") return read(field.value, card.numa_node) ? "" : malformed();
  if (field.key == "memory") return read(field.value, card.memory_bytes) ? "" : malformed();
  if (field.key == "bandwidth") return read_rate(field.value, card.host_bandwidth) ? "" : malformed();
  if (field.key == "device") {
    const auto device = Device::parse(field.value);
    if (device.ok()) card.device = *device;
    return device.ok() ? "" : std::string(device.status().message());
  }
  return "a card has no \"" + field.key + "\"";
}

std::string take(TopologyNic& nic, const Field& field) {
  const auto malformed = [&] { return "\"" + field.value + "\" is no value for " + field.key; };
  if (field.key == "host") return nic.host = field.value, "";
  if (field.key == "kind") return nic.kind = field.value, "";
  if (field.key == "pci") return nic.pci = field.value, "";
  if (field.key == "bus") return nic.bus = field.value, "";
  if (field.key == "numa") return read(field.value, nic.numa_node) ? "" : malformed();
  if (field.key == "bandwidth") return read_rate(field.value, nic.bandwidth) ? "" : malformed();
  return "a network card has no \"" + field.key + "\"";
}

std::string take(TopologyLink& link, const Field& field) {
  if (field.key == "kind") return link.kind = field.value, "";
  if (field.key == "bandwidth") return read_rate(field.value, link.bandwidth) ? "" : "\"" + field.value + "\" is no rate";
  return "a link has no \"" + field.key + "\"";
}

template <class Item>
std::string take_all(Item& item, const std::vector<Field>& fields, std::size_t from) {
  for (std::size_t i = from; i < fields.size(); ++i) {
    if (fields[i].key.empty()) return "\"" + fields[i].value + "\" is neither a name nor key=value";
    if (std::string what = take(item, fields[i]); !what.empty()) return what;
  }
  return "";
}

std::string take_line(Topology& topology, const std::vector<Field>& fields) {
  const std::string& word = fields[0].value;
  const std::size_t names = word == "link" ? 2 : 1;
  for (std::size_t i = 0; i <= names; ++i) {
    if (i >= fields.size() || !fields[i].key.empty()) return "\"" + word + "\" needs " + (names == 1 ? "a name" : "two names");
  }
  if (word == "host") {
    topology.hosts.push_back(fields[1].value);
    return fields.size() == 2 ? "" : "a host has a name only";
  }
  if (word == "card") {
    auto& card = topology.cards.emplace_back();
    card.name = fields[1].value;
    return take_all(card, fields, 2);
  }
  if (word == "nic") {
    auto& nic = topology.nics.emplace_back();
    nic.name = fields[1].value;
    return take_all(nic, fields, 2);
  }
  if (word == "link") {
    auto& link = topology.links.emplace_back();
    link.a = fields[1].value;
    link.b = fields[2].value;
    return take_all(link, fields, 3);
  }
  return "\"" + word + "\" is none of host, card, nic, link";
}

}  // namespace

std::string Topology::str() const {
  std::string out(first_line);
  out += '\n';
  for (const auto& host : hosts) out += "host " + in_quotes(host) + "\n";
  for (const auto& card : cards) {
    out += "card " + in_quotes(card.name);
    put(out, "host", card.host);
    put(out, "device", card.device.str());
    if (card.process >= 0) put(out, "process", std::to_string(card.process));
    put(out, "model", card.model);
    put(out, "pci", card.pci);
    if (card.numa_node >= 0) put(out, "numa", std::to_string(card.numa_node));
    if (card.memory_bytes > 0) put(out, "memory", std::to_string(card.memory_bytes));
    put(out, "bandwidth", card.host_bandwidth);
    put(out, "provenance", card.provenance);
    put(out, "bus", card.bus);
    out += '\n';
  }
  for (const auto& nic : nics) {
    out += "nic " + in_quotes(nic.name);
    put(out, "host", nic.host);
    put(out, "kind", nic.kind);
    put(out, "pci", nic.pci);
    if (nic.numa_node >= 0) put(out, "numa", std::to_string(nic.numa_node));
    put(out, "bandwidth", nic.bandwidth);
    put(out, "bus", nic.bus);
    out += '\n';
  }
  for (const auto& each : links) {
    out += "link " + in_quotes(each.a) + " " + in_quotes(each.b);
    put(out, "kind", each.kind);
    put(out, "bandwidth", each.bandwidth);
    out += '\n';
  }
  return out;
}

Result<Topology> Topology::parse(std::string_view text) {
  Topology topology;
  bool begun = false;
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const auto fields = split(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    const auto wrong = [&](const std::string& what) {
      return Status(Code::invalid_argument, "topology, line " + std::to_string(number) + ": " + what);
    };
    if (!fields) return wrong("a quote that does not end, or a key without a value");
    if (fields->empty()) continue;
    if (!begun) {
      if (fields->size() != 2 || (*fields)[0].value + " " + (*fields)[1].value != first_line) {
        return wrong("the first line must be \"" + std::string(first_line) + "\"");
      }
      begun = true;
      continue;
    }
    if (const std::string what = take_line(topology, *fields); !what.empty()) return wrong(what);
  }
  if (!begun) return Status(Code::invalid_argument, "topology: empty; the first line is \"" + std::string(first_line) + "\"");
  HMC_TRY(topology.check());
  return topology;
}

}  // namespace hmc
