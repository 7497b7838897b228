#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/error.h"

namespace sluice {

/// A word that a flag takes, and what it stands for.
template <class T>
struct Choice {
  std::string_view name;
  T value;
};

/// All words of a flag, in the order of --help.
template <class T, std::size_t N>
using Choices = std::array<Choice<T>, N>;

template <class T, std::size_t N>
constexpr std::string_view name_in(const Choices<T, N>& choices, const T& value) {
  for (const Choice<T>& choice : choices)
    if (choice.value == value) return choice.name;
  return {};
}

/// `name` must be one of the choices.
template <class T, std::size_t N>
T value_in(const Choices<T, N>& choices, std::string_view name) {
  const auto found = std::ranges::find(choices, name, &Choice<T>::name);
  check(found != choices.end(), "the command line has checked the word");
  return found->value;
}

template <class T, std::size_t N>
std::vector<std::string> names_of(const Choices<T, N>& choices) {
  std::vector<std::string> names;
  for (const Choice<T>& choice : choices)
    names.emplace_back(choice.name);
  return names;
}

}  // namespace sluice
