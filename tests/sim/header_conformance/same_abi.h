// Whether a call that HMC declares in its own types is the one that a vendor's header declares.
#pragma once

#include <type_traits>

namespace conformance {

// Structs that stand for one another; how far, its specialisation says.
template <class Ours, class Theirs>
inline constexpr bool same_layout = false;

template <class Ours, class Theirs>
consteval bool same_abi();

template <class Ours, class Theirs>
struct Calls : std::false_type {};
template <class Ours, class... OurArguments, class Theirs, class... TheirArguments>
  requires(sizeof...(OurArguments) == sizeof...(TheirArguments))
struct Calls<Ours(OurArguments...), Theirs(TheirArguments...)>
    : std::bool_constant<same_abi<Ours, Theirs>() && (... && same_abi<OurArguments, TheirArguments>())> {};

// Enumerators cross as integers of their size, opaque handles as void*; all else is what it is.
template <class Ours, class Theirs>
consteval bool same_abi() {
  if constexpr (std::is_same_v<Ours, Theirs>) {
    return true;
  } else if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
    using To = std::remove_pointer_t<Ours>;
    using TheirTo = std::remove_pointer_t<Theirs>;
    if constexpr (std::is_const_v<To> != std::is_const_v<TheirTo>) {
      return false;
    } else if constexpr (std::is_void_v<To>) {
      return std::is_class_v<TheirTo>;  // a handle
    } else {
      return same_abi<std::remove_const_t<To>, std::remove_const_t<TheirTo>>();
    }
  } else if constexpr (std::is_function_v<Ours> && std::is_function_v<Theirs>) {
    return Calls<Ours, Theirs>::value;
  } else if constexpr (std::is_integral_v<Ours> && std::is_enum_v<Theirs>) {
    return sizeof(Ours) == sizeof(Theirs);
  } else if constexpr (std::is_integral_v<Ours> && std::is_integral_v<Theirs>) {
    return sizeof(Ours) == sizeof(Theirs) && std::is_signed_v<Ours> == std::is_signed_v<Theirs>;
  } else {
    return same_layout<Ours, Theirs>;
  }
}

// The check itself sees a difference.
enum Enumeration { enumerator };
struct Handle;
static_assert(same_abi<int(void*, int, void (*)(void*)), Enumeration(Handle*, Enumeration, void (*)(void*))>());
static_assert(!same_abi<int(int), int(long)>() && !same_abi<int(int), int(unsigned)>() && !same_abi<int(int), int(int, int)>());
static_assert(!same_abi<int(void*), int(int*)>() && !same_abi<int(void*), int(const Handle*)>() &&
              !same_abi<int(void*), int(int)>());
static_assert(!same_abi<int(void (*)(void*)), int(void (*)(int))>() && !same_abi<void**, int**>());

}  // namespace conformance
