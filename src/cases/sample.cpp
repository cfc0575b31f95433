#include <fmt/format.h>

#include "cases/cases.h"
#include "core/sample_attrs.h"
#include "tessera/ops.h"

namespace tessera {
namespace {

struct GridSize {
  Shape x, points;
};
Shape grid_of(const GridSize& s) {
  Shape grid{s.x[0]};
  for (const Dim d : s.points) grid.push_back(d);
  grid.push_back(Dim(s.x.rank() - 2));
  return grid;
}
Shape result_of(const GridSize& s) {
  Shape y{s.x[0], s.x[1]};
  for (const Dim d : s.points) y.push_back(d);
  return y;
}

void add_grid_cases(std::vector<OpCase>& all) {
  const GridSize sizes[] = {{{2, 3, 4, 7}, {5, 3}}, {{2, 2, 3, 4, 5}, {2, 2, 3}}, {{1, 11, 1, 6}, {1, 7}}};
  for (const GridSize& s : sizes)
    for (const int64_t interpolation : {0, 1, 2})
      for (const int64_t beyond : {0, 1, 2})
        for (const bool align : {false, true}) {
          const GridSampleAttrs attrs{interpolation, beyond, align};
          const std::string label = fmt::format("{} dims of {} channels, {} {}{}", s.x.rank() - 2, s.x[1].value(),
                                                interpolation, beyond, align ? ", corners aligned" : "");
          all.push_back({.op = "grid_sample",
                         .label = label,
                         .attrs = attrs,
                         .inputs =
                             [=](Generator& g) {
                               return Tensors{uniform64(s.x, g), uniform64(grid_of(s), g, -1.6, 1.6)};
                             },
                         .gradients = interpolation == 0 ? 0b1u : 0b11u});
          for (const std::string_view op : {"grid_sample_input_grad", "grid_sample_grid_grad"})
            all.push_back(
                {.op = op, .label = label, .attrs = attrs, .inputs = [=](Generator& g) {
                   return Tensors{uniform64(result_of(s), g), uniform64(s.x, g), uniform64(grid_of(s), g, -1.6, 1.6)};
                 }});
        }
  const GridSampleAttrs elements{1, 0, false, true};
  all.push_back({.op = "grid_sample",
                 .label = "coordinates of elements",
                 .attrs = elements,
                 .inputs =
                     [](Generator& g) {
                       return Tensors{uniform64({2, 3, 5, 6}, g), uniform64({2, 3, 4, 2}, g, -2, 7)};
                     },
                 .gradients = 0b11u});
  for (const std::string_view op : {"grid_sample_input_grad", "grid_sample_grid_grad"})
    all.push_back(
        {.op = op, .label = "coordinates of elements", .attrs = elements, .inputs = [](Generator& g) {
           return Tensors{uniform64({2, 3, 3, 4}, g), uniform64({2, 3, 5, 6}, g), uniform64({2, 3, 4, 2}, g, -2, 7)};
         }});
  // Many points about few elements, so that lists of contributions are long.
  all.push_back({.op = "grid_sample_input_grad",
                 .label = "many points",
                 .attrs = GridSampleAttrs{1, 1, false},
                 .inputs = [](Generator& g) {
                   return Tensors{uniform64({1, 2, 20, 20}, g), uniform64({1, 2, 3, 2}, g),
                                  uniform64({1, 20, 20, 2}, g, -1.6, 1.6)};
                 }});
}

// Corners lie in order, some of them beyond the image.
Tensor regions_of(int64_t count, Generator& g) {
  const Tensor low = uniform64({count, 2}, g, -2, 5), size = uniform64({count, 2}, g, 0.5, 9);
  return concat({low, add(low, size)}, 1);
}

void add_region_cases(std::vector<OpCase>& all) {
  for (const int64_t samples : {0, 1, 2, 3})
    for (const bool aligned : {false, true}) {
      const RoiAlignAttrs attrs{3, 2, 0.75, samples, aligned};
      const std::string label = fmt::format("{} samples{}", samples, aligned ? ", aligned" : "");
      const Shape x{2, 3, 6, 7};
      all.push_back({.op = "roi_align",
                     .label = label,
                     .attrs = attrs,
                     .inputs =
                         [=](Generator& g) {
                           return Tensors{uniform64(x, g), regions_of(5, g), indices({5}, 2, g)};
                         },
                     .gradients = 0b1});
      all.push_back(
          {.op = "roi_align_input_grad",
           .label = label,
           .attrs = attrs,
           .inputs =
               [=](Generator& g) {
                 return Tensors{uniform64({5, 3, 3, 2}, g), uniform64(x, g), regions_of(5, g), indices({5}, 2, g)};
               },
           .gradients = 0b1,
           .symbolic = false});
    }
}

}  // namespace

std::vector<OpCase> sample_cases() {
  std::vector<OpCase> all;
  add_grid_cases(all);
  add_region_cases(all);
  return all;
}

}  // namespace tessera
