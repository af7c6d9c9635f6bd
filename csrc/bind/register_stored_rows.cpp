// Rows that are read from segment files straight into tables.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "bind/checks.hpp"
#include "bind/device_arguments.hpp"
#include "bind/python_system.hpp"
#include "bind/register.hpp"
#include "store/segment_reader.hpp"
#include "table/collection.hpp"
#include "table/device_loader.hpp"

namespace py = pybind11;

namespace cpr {
namespace {

// Writes rows into a table whose lock is held: a run of consecutive ones is read straight to its place.
class TableTaker : public store::RowTaker {
 public:
  TableTaker(Collection* collection, int64_t table, bool dirty)
      : collection_(collection), table_(table), dirty_(dirty), view_(collection->table(table).view()) {}

  void* place(const int64_t* ids, int64_t n) override {
    bool consecutive = true;
    for (int64_t i = 1; i < n; ++i) consecutive &= ids[i] == ids[i - 1] + 1;
    return consecutive ? weight_bytes_of(view_, ids[0] - view_.row_offset) : nullptr;
  }

  void take(const int64_t* ids, int64_t n, const void* weight, const float* state) override {
    collection_->write_rows(table_, ids, n, weight, state, dirty_);
  }

 private:
  Collection* const collection_;
  const int64_t table_;
  const bool dirty_;
  const TableView view_;
};

class DeviceTaker : public store::RowTaker {
 public:
  DeviceTaker(DeviceLoader* loader, int64_t table, bool dirty) : loader_(loader), table_(table), dirty_(dirty) {}

  void* place(const int64_t*, int64_t) override { return nullptr; }

  void take(const int64_t* ids, int64_t n, const void* weight, const float* state) override {
    loader_->write(table_, ids, n, weight, state, dirty_);
  }

 private:
  DeviceLoader* const loader_;
  const int64_t table_;
  const bool dirty_;
};

// A collection, one on a device with the stream that gets the work.
using OnDevice = std::pair<DeviceCollection*, cuda::Stream>;
using Home = std::variant<Collection*, OnDevice>;

// Collection, table, open file, its path, whose rows, rows, offsets of ids, weight and state, range of ids, dirty.
using StoredSpec = std::tuple<Home, int64_t, int, std::string, std::string, int64_t,
                              std::tuple<uint64_t, uint64_t, uint64_t>, std::pair<int64_t, int64_t>, bool>;

const TableSpec& checked_spec(const Home& home, int64_t table, RowFormat* format) {
  if (const OnDevice* device = std::get_if<OnDevice>(&home)) {
    *format = device->first->format(checked_table(*device->first, table));
    return device->first->spec(table);
  }
  Collection* collection = std::get<Collection*>(home);
  Table& t = collection->table(check_table(*collection, table));
  *format = t.format();
  return t.spec();
}

store::StoredRows to_stored(const StoredSpec& spec) {
  const auto& [home, index, fd, path, owner, rows, offsets, range, dirty] = spec;
  RowFormat format;
  const TableSpec& table = checked_spec(home, index, &format);
  require(rows >= 0, "rows: expected at least 0, got " + std::to_string(rows));
  store::StoredRows stored;
  stored.fd = fd;
  stored.path = path;
  stored.owner = owner;
  stored.rows = rows;
  std::tie(stored.ids_at, stored.weight_at, stored.state_at) = offsets;
  stored.weight_size = static_cast<size_t>(weight_bytes(format));
  stored.state_size = static_cast<size_t>(format.state_size) * sizeof(float);
  stored.begin = std::max(range.first, table.row_offset);
  stored.end = std::min(range.second, table.row_offset + table.num_embeddings);
  return stored;
}

// Holds the locks of all collections, always taken in the order of their addresses.
class Holds {
 public:
  explicit Holds(const std::vector<StoredSpec>& specs) {
    for (const StoredSpec& spec : specs) {
      if (const OnDevice* device = std::get_if<OnDevice>(&std::get<0>(spec))) {
        streams_[device->first] = device->second;
      } else {
        locks_[std::get<Collection*>(std::get<0>(spec))];
      }
    }
    for (auto& [collection, lock] : locks_) lock = collection->hold_rows();
    for (const auto& [collection, stream] : streams_) {
      loaders_[collection] = std::make_unique<DeviceLoader>(collection, stream);
    }
  }

  std::unique_ptr<store::RowTaker> taker(const StoredSpec& spec) const {
    const int64_t table = std::get<1>(spec);
    const bool dirty = std::get<8>(spec);
    if (const OnDevice* device = std::get_if<OnDevice>(&std::get<0>(spec))) {
      return std::make_unique<DeviceTaker>(loaders_.at(device->first).get(), table, dirty);
    }
    return std::make_unique<TableTaker>(std::get<Collection*>(std::get<0>(spec)), table, dirty);
  }

  void finish() const {
    for (const auto& [collection, loader] : loaders_) loader->finish();
  }

 private:
  std::map<Collection*, std::unique_lock<std::mutex>> locks_;
  std::map<DeviceCollection*, cuda::Stream> streams_;
  std::map<DeviceCollection*, std::unique_ptr<DeviceLoader>> loaders_;
};

std::vector<std::tuple<uint32_t, uint32_t, uint32_t>> load_stored_rows(const std::vector<StoredSpec>& specs,
                                                                       int threads, const py::object& system) {
  check_threads(threads);
  std::vector<store::StoredRows> stored;
  for (const StoredSpec& spec : specs) stored.push_back(to_stored(spec));
  const store::SystemPtr calls = system_of(system);
  const py::gil_scoped_release release;
  const Holds holds(specs);
  std::vector<std::unique_ptr<store::RowTaker>> takers;
  std::vector<store::RowTaker*> pointers;
  for (const StoredSpec& spec : specs) pointers.push_back(takers.emplace_back(holds.taker(spec)).get());
  std::vector<std::tuple<uint32_t, uint32_t, uint32_t>> found;
  for (const store::StoredCrcs& crcs : store::read_rows(stored, pointers, threads, calls.get())) {
    found.emplace_back(crcs.ids, crcs.weight, crcs.state);
  }
  holds.finish();
  return found;
}

}  // namespace

void register_stored_rows(py::module_& module) {
  module.def("load_stored_rows", &load_stored_rows, py::arg("stored"), py::arg("threads"),
             py::arg("system") = py::none());
}

}  // namespace cpr
