#include "shapes.h"

#include <algorithm>
#include <vector>

namespace fuzz {

// The dimensions that a name stands for, 1 to `most` of them. Groups divide the channels.
const Shape& Shapes::block(std::string_view name, int64_t most) {
  const auto found = known_.find(name);
  if (found != known_.end()) return found->second;
  if (name == "group") {
    const auto channels = known_.find("C");
    const int64_t all = channels == known_.end() ? 1 : std::max<int64_t>(channels->second[0], 1);
    const int64_t groups = bytes_.pick<int64_t>({1, all, 2, 3});
    return known_.emplace(name, Shape{all % groups == 0 ? groups : 1}).first->second;
  }
  Shape dims(static_cast<size_t>(1 + bytes_.below(most)));
  int64_t product = 1;
  for (int64_t& dim : dims) {
    dim = bytes_.pick<int64_t>({2, 1, 3, 4, 5, 8, 17, 1, 2, 3, 4, 0});
    if (product * dim > 60) dim = 1;
    product *= std::max<int64_t>(dim, 1);
    certain_ = certain_ && dim > 0;
  }
  return known_.emplace(name, std::move(dims)).first->second;
}

Shape Shapes::list(std::string_view text) {
  std::vector<std::string_view> items;
  while (!text.empty()) {
    const size_t end = std::min(text.find(", "), text.size());
    items.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 2, text.size()));
  }
  Shape shape;
  const auto add = [&shape](const Shape& dims) { shape.insert(shape.end(), dims.begin(), dims.end()); };
  for (size_t i = 0; i < items.size(); ++i) {
    const bool some = i + 2 < items.size() && items[i + 1] == "...";
    if (some && items[i] == "1") {
      shape.insert(shape.end(), normalized().size(), 1);
    } else if (some) {
      add(block(items[i], items[i] == "R1" ? 2 : 3));
    } else if (items[i] == "1") {
      shape.push_back(1);
    } else if (items[i] == "...") {
      add(block(items[i], 2));
    } else if (const size_t end = items[i].find(" or 1"); end != items[i].npos) {
      const Shape& dim = block(items[i].substr(0, end), 1);
      add(bytes_.one_in(3) ? Shape{1} : dim);
    } else if (items[i].starts_with("2 ")) {
      add({2 * block(items[i].substr(2), 1)[0]});
    } else {
      add(block(items[i], 1));
    }
    if (some) i += 2;
  }
  return shape;
}

// One of the shapes of "[], [1] or [N] for none".
std::string_view Shapes::choose(std::string_view text) {
  if (const size_t usual = text.find("usually "); usual != text.npos) text.remove_prefix(usual + 8), certain_ = false;
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(" or ", text.find(']', begin)), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 4;
  }
  std::erase_if(parts, [](std::string_view part) { return !part.starts_with("[") && !part.starts_with("as "); });
  for (std::string_view part : parts) {
    if (!text_.empty() && part.ends_with(text_) && part.find(" for ") != part.npos) return part;
  }
  std::erase_if(parts, [](std::string_view part) { return part.find(" for ") != part.npos; });
  if (parts.size() > 1) certain_ = false;
  if (parts.empty()) return text;
  return parts.size() > 1 && bytes_.one_in(3) ? parts[1] : parts[0];
}

int64_t Shapes::number(std::string_view name) {
  const auto dim = [this](std::string_view key) {
    const auto found = known_.find(key);
    return found == known_.end() || found->second.empty() ? int64_t{1} : found->second[0];
  };
  if (name == "HxW") {
    const auto found = known_.find("...");
    int64_t product = 1;
    for (size_t i = 0; found != known_.end() && i < found->second.size(); ++i) product *= found->second[i];
    return product;
  }
  if (name == "group") return block(name, 1)[0];
  return name == "N" || name == "C" ? dim(name) : -1;
}

Shape Shapes::of(std::string_view text) {
  const auto [choice, first] = choices_.try_emplace(text);
  if (first) choice->second = choose(text);
  text = choice->second;
  if (text.starts_with("as ")) {
    for (const descend::Parameter& one : op_.parameters) {
      if (text.substr(3) == one.name || text.substr(3) == one.python)
        return of(one.shape);  // the same, if drawn before
    }
  }
  const size_t begin = text.find('['), end = text.find(']');
  certain_ = certain_ && begin == 0 && end != text.npos;
  if (begin == text.npos || end == text.npos) return {1};
  const auto [found, is_new] = lists_.try_emplace(text);
  if (is_new) found->second = list(text.substr(begin + 1, end - begin - 1));
  return found->second;
}

Shape Shapes::normalized() const {
  const auto found = known_.find("R1");
  return found == known_.end() ? Shape{} : found->second;
}

}  // namespace fuzz
