// Traces of several ranks made by hand, merged; and who waited for whom in them.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "profiler/analysis.h"
#include "profiler/summary.h"
#include "profiler/trace_json.h"
#include "profiler/trace_maker.h"
#include "profiler/waits.h"
#include "tessera/error.h"

namespace tessera::profiler {
namespace {

/// Two steps of 1 ms; in each an all_reduce, to which the rank comes `late` microseconds after 500 us, and which all
/// leave at 900.
TraceMaker rank_maker(int rank, double late) {
  TraceMaker maker;
  maker.trace.rank = rank;
  maker.trace.ranks = 2;
  maker.trace.base = 1'000'000'000;
  maker.trace.host = "node";
  maker.trace.notes = {"a note"};
  maker.trace.dropped = 2;
  maker.roof(0, {});
  const int32_t add = maker.call(call_of_op("add", {}, "f32", 0, 0, "h." + std::to_string(rank)));
  const int32_t reduce = maker.call(call_of_op("all_reduce"));
  for (int i = 0; i < 2; ++i) {
    const double at = i * 1000;
    maker.step(i, at, at + 1000);
    maker.launched(add, "map", at + 10, at + 20, at + 400);
    maker.launched(reduce, "ncclDevKernel_AllReduce", at + 30, at + 500 + late, at + 900);
    maker.trace.spans.back().bytes = rank + 1;
  }
  return maker;
}
Trace rank_trace(int rank, double late) {
  Trace out = rank_maker(rank, late).made();
  out.memory.push_back({5000, 0, TraceMaker::kThread, 64, 1, 64, 64, 0, MemoryKind::Activation});
  out.counters.push_back({0, 100 + rank});
  return out;
}

TEST(Merge, KeepsRanksApart) {
  const Trace a = rank_trace(0, 0), b = rank_trace(1, 300);
  const Trace merged = merge({b, a});  // in any order
  EXPECT_EQ(merged.rank, 0);
  EXPECT_EQ(merged.ranks, 2);
  EXPECT_TRUE(is_merged(merged));
  EXPECT_FALSE(is_merged(a));
  EXPECT_EQ(merged.dropped, 4);
  EXPECT_EQ(merged.notes, (std::vector<std::string>{"rank 0: a note", "rank 1: a note"}));
  ASSERT_EQ(merged.spans.size(), a.spans.size() + b.spans.size());
  ASSERT_EQ(merged.devices.size(), 2u);
  EXPECT_NE(merged.devices[0].id, merged.devices[1].id);
  EXPECT_EQ(merged.names.size(), a.names.size());  // the same names
  std::map<int, std::set<int>> ranks;              // by device
  std::map<uint32_t, std::set<int>> correlations;
  for (const Span& span : merged.spans) {
    const int rank = rank_of(merged, span);
    if (span.kind == Kind::Runtime) {
      EXPECT_EQ(span.detail, 211);
    }
    if (span.kind == Kind::Kernel) {
      ranks[span.device].insert(rank);
      const std::string path = merged.call_of(span)->path;
      EXPECT_EQ(path, merged.name_of(span) == "map" ? "h." + std::to_string(rank) : "");
      EXPECT_EQ(rank_of(merged, *owner_of(merged, span)), rank);
      EXPECT_EQ(merged.call_of(*owner_of(merged, span)), merged.call_of(span));
    }
    if (span.correlation) correlations[span.correlation].insert(rank);
  }
  EXPECT_EQ(ranks.size(), 2u);
  for (const auto& [device, of] : ranks) EXPECT_EQ(of.size(), 1u) << device;
  EXPECT_EQ(correlations.size(), 8u);
  for (const auto& [correlation, of] : correlations) EXPECT_EQ(of.size(), 1u) << correlation;
  ASSERT_EQ(merged.memory.size(), 2u);
  for (const MemoryChange& change : merged.memory) EXPECT_EQ(span_at(merged, change.owner).kind, Kind::Step);
  EXPECT_NE(merged.memory[0].device, merged.memory[1].device);
  ASSERT_EQ(merged.counters.size(), 2u);
  for (const StepCounters& counters : merged.counters) {
    EXPECT_EQ(merged.name_of(span_at(merged, counters.step)), "ProfilerStep#0");
    EXPECT_EQ(counters.cycles, 100 + rank_of(merged, span_at(merged, counters.step)));
  }
}

TEST(Merge, SpansStayInOrder) {
  const Trace merged = merge({rank_trace(0, 0), rank_trace(1, 300), rank_trace(2, 100)});
  for (size_t i = 1; i < merged.spans.size(); ++i) {
    const Span &x = merged.spans[i - 1], &y = merged.spans[i];
    EXPECT_TRUE(x.begin < y.begin || (x.begin == y.begin && x.end >= y.end)) << i;
  }
  EXPECT_EQ(merged.ranks, 3);  // more than the traces said
}

// A host's numbers of threads may be larger than what ranks are told apart by.
TEST(Merge, LargeNumbersOfThreadsStayApart) {
  TraceMaker a = rank_maker(0, 0), b = rank_maker(1, 0);
  b.add(Kind::Range, "x", 0, 1, 140'000'000'000'000);
  b.add(Kind::Range, "y", 0, 1, -5);
  const Trace merged = merge({a.made(), b.made()});
  std::set<int64_t> threads;
  for (const Span& span : merged.spans) {
    if (merged.name_of(span) != "x" && merged.name_of(span) != "y") continue;
    EXPECT_EQ(rank_of(merged, span), 1);
    threads.insert(span.thread);
  }
  EXPECT_EQ(threads.size(), 2u);
  Trace alone = b.made();
  EXPECT_FALSE(is_merged(alone));
}

TEST(Merge, PutsAllOnOneClock) {
  Trace late = rank_trace(1, 0);
  late.base += 250'000;  // 0.25 ms later, as clocks say that agree well enough
  const Trace merged = merge({rank_trace(0, 0), late});
  std::vector<int64_t> begins;
  for (const Span& span : merged.spans)
    if (span.kind == Kind::Step) begins.push_back(span.begin);
  EXPECT_EQ(begins, (std::vector<int64_t>{0, 250'000, 1'000'000, 1'250'000}));
}

TEST(Merge, CorrectsAClockByWhatRanksLeaveTogether) {
  Trace ahead = rank_trace(1, 300);
  ahead.base += 7'000'000;  // its clock is 7 ms ahead
  const Trace merged = merge({rank_trace(0, 0), ahead});
  std::set<int64_t> ends;
  for (const Span& span : merged.spans)
    if (span.kind == Kind::Kernel && span.begin > 400'000) ends.insert(span.end);
  EXPECT_TRUE(ends.count(900'000));
  EXPECT_TRUE(ends.count(1'900'000));
  EXPECT_EQ(merged.memory[0].at, merged.memory[1].at);
}

TEST(Merge, StaysMergedInAFile) {
  const Trace merged = merge({rank_trace(0, 0), rank_trace(1, 300)});
  const Trace read = parse_trace(trace_text(merged), "merged");
  EXPECT_TRUE(is_merged(read));
  ASSERT_EQ(read.spans.size(), merged.spans.size());
  for (size_t i = 0; i < read.spans.size(); ++i)
    EXPECT_EQ(rank_of(read, read.spans[i]), rank_of(merged, merged.spans[i]));
  EXPECT_EQ(waits_text(read), waits_text(merged));
  EXPECT_EQ(steps_text(steps_of(read)), steps_text(steps_of(merged)));
}

/// A viewer shows a process for each rank, also where both had the same number, as in containers.
TEST(Merge, ShowsAProcessForEachRank) {
  Trace a = rank_trace(0, 0), b = rank_trace(1, 300);
  a.process = b.process = 1;
  const nlohmann::json file = nlohmann::json::parse(trace_text(merge({a, b})));
  std::map<std::string, std::set<int64_t>> processes;  // by name
  std::map<int64_t, int> ops;
  for (const auto& event : file["traceEvents"]) {
    if (event["name"] == "process_name") processes[event["args"]["name"]].insert(event["pid"].get<int64_t>());
    if (event.value("cat", "") == "cpu_op") ++ops[event["pid"].get<int64_t>()];
  }
  EXPECT_EQ(processes["tessera, rank 0"], (std::set<int64_t>{1}));
  EXPECT_EQ(processes["tessera, rank 1"], (std::set<int64_t>{2}));
  EXPECT_EQ(ops, (std::map<int64_t, int>{{1, 4}, {2, 4}}));
}

TEST(Merge, RefusesTwoOfOneRank) {
  const auto message_of = [](const std::vector<Trace>& ranks) {
    try {
      merge(ranks);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(message_of({rank_trace(1, 0), rank_trace(0, 0), rank_trace(1, 0)}), "merge: two traces are of rank 1");
  EXPECT_EQ(message_of({}), "merge: no traces");
  EXPECT_EQ(message_of({merge({rank_trace(0, 0), rank_trace(1, 0)}), rank_trace(4, 0)}),
            "merge: a trace holds several ranks already");
  EXPECT_EQ(merge({rank_trace(3, 0)}).spans.size(), rank_trace(3, 0).spans.size());
}

TEST(Waits, SayWhoCameLast) {
  const Trace merged = merge({rank_trace(0, 0), rank_trace(1, 300)});
  const auto waits = waits_of(merged);
  ASSERT_EQ(waits.size(), 2u);  // steps
  EXPECT_EQ(waits[0].step, "ProfilerStep#0");
  EXPECT_EQ(waits[0].name, "ncclDevKernel_AllReduce");
  EXPECT_EQ(waits[0].calls, 1);
  EXPECT_EQ(waits[0].last, 1);
  EXPECT_EQ(waits[0].ranks, (std::vector<int>{0, 1}));
  EXPECT_NEAR(waits[0].waited[0], 300e-6, 1e-12);
  EXPECT_EQ(waits[0].waited[1], 0);
  EXPECT_NEAR(waits[0].mean_wait(), 150e-6, 1e-12);
  const std::string text = waits_text(merged);
  EXPECT_NE(text.find("rank 1 (1 of 1)"), text.npos) << text;
  EXPECT_NE(text.find("rank 0 300 us"), text.npos) << text;
  EXPECT_NE(text.find("rank 0 waited 600 us in all"), text.npos) << text;
}

TEST(Waits, AreOfOperatorsWhereThereAreNoKernels) {
  std::vector<Trace> ranks;
  for (int rank = 0; rank < 5; ++rank) {
    TraceMaker maker;
    maker.trace.rank = rank;
    const int32_t outer = maker.call(call_of_op("all_gather_")), inner = maker.call(call_of_op("barrier"));
    maker.op(outer, rank * 10, 100);
    maker.op(inner, rank * 10 + 5, 90);  // a part of it
    maker.op(maker.call(call_of_op("broadcast_to")), 0, 50);
    ranks.push_back(maker.made());
  }
  const Trace merged = merge(ranks);
  const auto waits = waits_of(merged);
  ASSERT_EQ(waits.size(), 1u);
  EXPECT_EQ(waits[0].name, "all_gather");
  EXPECT_EQ(waits[0].last, 4);
  EXPECT_NEAR(waits[0].waited[1], 30e-6, 1e-12);
  EXPECT_NE(waits_text(merged).find("4 ranks, 10.0 us to 40.0 us"), std::string::npos) << waits_text(merged);
}

/// A program that has collectives of its own gives them such a name.
TEST(Waits, AreOfRangesThatBearTheName) {
  std::vector<Trace> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    TraceMaker maker;
    maker.trace.rank = rank;
    maker.add(Kind::Range, "all_reduce", rank * 30, 100);
    maker.op(maker.call(call_of_op("all_reduce")), rank * 30 + 5, 90);  // a part of it
    maker.add(Kind::Range, "reduce", 200, 210);
    ranks.push_back(maker.made());
  }
  const auto waits = waits_of(merge(ranks));
  ASSERT_EQ(waits.size(), 1u);
  EXPECT_EQ(waits[0].calls, 1);
  EXPECT_NEAR(waits[0].waited[0], 30e-6, 1e-12);
}

TEST(Waits, WithoutCollectivesThereAreNone) {
  TraceMaker maker;
  maker.kernel("map", 0, 10);
  EXPECT_TRUE(waits_of(maker.made()).empty());
  EXPECT_EQ(waits_text({}), "no collectives that ranks did together were recorded\n");
}

TEST(Steps, OfMergedTracesAreThoseOfTheBusiestDevicesRank) {
  TraceMaker b = rank_maker(1, 300);
  b.kernel("more", 2100, 2500, b.op(0, 1990, 1995));
  const Trace merged = merge({rank_trace(0, 350), b.made()});
  const auto steps = steps_of(merged);
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_NEAR(steps[0].seconds, 1000e-6, 1e-12);
  EXPECT_NEAR(steps[1].seconds, 1480e-6, 1e-12);  // until 2500
}

}  // namespace
}  // namespace tessera::profiler
