// Thrust, as far as programs mostly use it: each algorithm reads what it is given, works on the host without
// haste, and writes its result. What is not here a program cannot call.
#pragma once
#include <algorithm>
#include <functional>
#include <initializer_list>
#include <iostream>
#include <iterator>
#include <numeric>
#include <random>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "../cuda_runtime.h"

#define THRUST_VERSION 200400

namespace thrust {
using std::get;
using std::make_pair;
using std::make_tuple;
using std::pair;
using std::tie;
using std::tuple;
struct system_error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// ---- memory of the device -----------------------------------------------------------------------
template <class T> class device_ptr;
template <class T> class device_reference {
  public:
    explicit device_reference(T* at) : at(at) {}
    operator T() const { return *at; }
    device_reference& operator=(const T& value) {
        emu::copy(at, &value, sizeof value, cudaMemcpyHostToDevice);
        return *this;
    }
    device_reference& operator=(const device_reference& other) { return *this = T(other); }
    device_reference(const device_reference&) = default;
    device_reference& operator+=(const T& value) { return *this = T(*at + value); }
    device_ptr<T> operator&() const { return device_ptr<T>(at); }
    friend void swap(device_reference a, device_reference b) {
        T value = a;
        a = T(b), b = value;
    }

  private:
    T* at;
};
template <class T> class device_ptr {
  public:
    typedef std::remove_const_t<T> value_type;
    typedef device_reference<T> reference;
    typedef std::ptrdiff_t difference_type;
    typedef device_ptr pointer;
    typedef std::random_access_iterator_tag iterator_category;
    device_ptr() = default;
    explicit device_ptr(T* at) : at(at) {}
    template <class U, class = std::enable_if_t<std::is_convertible<U*, T*>::value>>
    device_ptr(const device_ptr<U>& other) : at(other.get()) {}
    T* get() const { return at; }
    reference operator*() const { return reference(at); }
    reference operator[](difference_type n) const { return reference(at + n); }
    device_ptr& operator+=(difference_type n) { at += n; return *this; }
    device_ptr& operator-=(difference_type n) { at -= n; return *this; }
    device_ptr& operator++() { ++at; return *this; }
    device_ptr& operator--() { --at; return *this; }
    device_ptr operator++(int) { return device_ptr(at++); }
    device_ptr operator--(int) { return device_ptr(at--); }
    friend device_ptr operator+(device_ptr p, difference_type n) { return device_ptr(p.at + n); }
    friend device_ptr operator-(device_ptr p, difference_type n) { return device_ptr(p.at - n); }
    friend difference_type operator-(device_ptr a, device_ptr b) { return a.at - b.at; }
    friend bool operator==(device_ptr a, device_ptr b) { return a.at == b.at; }
    friend bool operator!=(device_ptr a, device_ptr b) { return a.at != b.at; }
    friend bool operator<(device_ptr a, device_ptr b) { return a.at < b.at; }

  private:
    T* at = nullptr;
};
template <class T> device_ptr<T> device_pointer_cast(T* at) { return device_ptr<T>(at); }
template <class T> T* raw_pointer_cast(device_ptr<T> p) { return p.get(); }
template <class T> T* raw_pointer_cast(T* p) { return p; }
template <class T> device_ptr<T> device_malloc(size_t count) {
    T* at = nullptr;
    if (emu::allocate(&at, count * sizeof(T), EMU_DEVICE) != cudaSuccess) throw std::bad_alloc();
    return device_ptr<T>(at);
}
template <class T> void device_free(device_ptr<T> p) { emu::release(p.get(), EMU_DEVICE); }

namespace emu_detail {
// Values of a range, and a range with other values.
template <class I> auto values(I first, I last) {
    typedef typename std::iterator_traits<I>::value_type T;
    std::vector<T> all;
    for (; first != last; ++first) all.push_back(*first);
    return all;
}
template <class T> std::vector<std::remove_const_t<T>> values(device_ptr<T> first, device_ptr<T> last) {
    return std::vector<std::remove_const_t<T>>(first.get(), last.get());
}
template <class T, class O> O write(const std::vector<T>& all, O to) {
    for (size_t i = 0; i < all.size(); ++i, ++to) *to = all[i];
    return to;
}
template <class T, class U> device_ptr<U> write(const std::vector<T>& all, device_ptr<U> to) {
    std::vector<U> own(all.begin(), all.end());
    emu::copy(to.get(), own.data(), own.size() * sizeof(U), cudaMemcpyHostToDevice);
    return to + std::ptrdiff_t(own.size());
}
}  // namespace emu_detail

template <class T> class host_vector;
template <class T> class device_vector {
  public:
    typedef T value_type;
    typedef device_ptr<T> iterator;
    typedef device_ptr<const T> const_iterator;
    typedef device_reference<T> reference;
    device_vector() = default;
    explicit device_vector(size_t count, const T& value = T()) { assign(std::vector<T>(count, value)); }
    template <class I, class = typename std::iterator_traits<I>::iterator_category>
    device_vector(I first, I last) { assign(emu_detail::values(first, last)); }
    device_vector(std::initializer_list<T> all) { assign(std::vector<T>(all)); }
    device_vector(const std::vector<T>& all) { assign(all); }
    device_vector(const device_vector& other) { assign(other.all()); }
    device_vector(device_vector&& other) noexcept { swap(other); }
    device_vector& operator=(const device_vector& other) {
        assign(other.all());
        return *this;
    }
    device_vector& operator=(const std::vector<T>& other) {
        assign(other);
        return *this;
    }
    device_vector& operator=(device_vector&& other) noexcept {
        swap(other);
        return *this;
    }
    ~device_vector() {
        if (at) emu::host->release(at, EMU_DEVICE);
    }
    void swap(device_vector& other) noexcept {
        std::swap(at, other.at), std::swap(count, other.count);
    }
    iterator begin() { return iterator(at); }
    iterator end() { return iterator(at + count); }
    const_iterator begin() const { return const_iterator(at); }
    const_iterator end() const { return const_iterator(at + count); }
    iterator data() { return begin(); }
    const_iterator data() const { return begin(); }
    reference operator[](size_t n) { return reference(at + n); }
    T operator[](size_t n) const { return at[n]; }
    reference front() { return (*this)[0]; }
    reference back() { return (*this)[count - 1]; }
    size_t size() const { return count; }
    bool empty() const { return count == 0; }
    void clear() { assign({}); }
    void reserve(size_t) {}
    void shrink_to_fit() {}
    void resize(size_t n, const T& value = T()) {
        std::vector<T> own = all();
        own.resize(n, value);
        assign(own);
    }
    void push_back(const T& value) {
        std::vector<T> own = all();
        own.push_back(value);
        assign(own);
    }
    std::vector<T> all() const { return std::vector<T>(at, at + count); }

  private:
    void assign(const std::vector<T>& own) {
        if (own.size() != count) {
            if (at) emu::host->release(at, EMU_DEVICE);
            at = own.empty() ? nullptr : device_malloc<T>(own.size()).get();
            count = own.size();
        }
        if (count) emu::copy(at, own.data(), count * sizeof(T), cudaMemcpyHostToDevice);
    }
    T* at = nullptr;
    size_t count = 0;
};
template <class T> class host_vector : public std::vector<T> {
  public:
    using std::vector<T>::vector;
    host_vector() = default;
    host_vector(const device_vector<T>& other) : std::vector<T>(other.all()) {}
    host_vector& operator=(const device_vector<T>& other) {
        std::vector<T>::operator=(other.all());
        return *this;
    }
};

// ---- where an algorithm runs --------------------------------------------------------------------
struct emu_policy {
    template <class S> emu_policy on(S) const { return {}; }
};
constexpr emu_policy device, host, seq;
namespace cuda { constexpr emu_policy par, par_nosync; }

// ---- functions ----------------------------------------------------------------------------------
#define EMU_FUNCTION(name, expression)                                                     \
    template <class T = void> struct name {                                                \
        typedef T first_argument_type, second_argument_type;                               \
        constexpr auto operator()(const T& a, const T& b) const { return expression; }     \
    };                                                                                     \
    template <> struct name<void> {                                                        \
        template <class T> constexpr auto operator()(const T& a, const T& b) const { return expression; } \
    };
EMU_FUNCTION(plus, a + b)
EMU_FUNCTION(minus, a - b)
EMU_FUNCTION(multiplies, a * b)
EMU_FUNCTION(divides, a / b)
EMU_FUNCTION(maximum, a < b ? b : a)
EMU_FUNCTION(minimum, b < a ? b : a)
EMU_FUNCTION(less, a < b)
EMU_FUNCTION(less_equal, a <= b)
EMU_FUNCTION(greater, a > b)
EMU_FUNCTION(greater_equal, a >= b)
EMU_FUNCTION(equal_to, a == b)
EMU_FUNCTION(not_equal_to, a != b)
EMU_FUNCTION(logical_and, a && b)
EMU_FUNCTION(logical_or, a || b)
#undef EMU_FUNCTION
template <class T = void> struct identity { constexpr T operator()(const T& a) const { return a; } };
template <class T = void> struct negate { constexpr T operator()(const T& a) const { return -a; } };
template <class T = void> struct square { constexpr T operator()(const T& a) const { return a * a; } };

// ---- iterators ----------------------------------------------------------------------------------
// One whose place is a number, by what it gives for that number.
template <class F> class emu_indexed {
  public:
    typedef std::decay_t<decltype(std::declval<F>()(std::ptrdiff_t()))> value_type;
    typedef decltype(std::declval<F>()(std::ptrdiff_t())) reference;
    typedef std::ptrdiff_t difference_type;
    typedef void pointer;
    typedef std::random_access_iterator_tag iterator_category;
    explicit emu_indexed(F f, std::ptrdiff_t at = 0) : f(f), at(at) {}
    reference operator*() const { return f(at); }
    reference operator[](std::ptrdiff_t n) const { return f(at + n); }
    emu_indexed& operator++() { ++at; return *this; }
    emu_indexed operator++(int) { return emu_indexed(f, at++); }
    emu_indexed& operator+=(std::ptrdiff_t n) { at += n; return *this; }
    friend emu_indexed operator+(emu_indexed i, std::ptrdiff_t n) { return i += n; }
    friend std::ptrdiff_t operator-(const emu_indexed& a, const emu_indexed& b) { return a.at - b.at; }
    friend bool operator==(const emu_indexed& a, const emu_indexed& b) { return a.at == b.at; }
    friend bool operator!=(const emu_indexed& a, const emu_indexed& b) { return a.at != b.at; }

  private:
    F f;
    std::ptrdiff_t at;
};
template <class T> struct emu_count { T operator()(std::ptrdiff_t n) const { return T(n); } };
template <class T> class counting_iterator : public emu_indexed<emu_count<T>> {
  public:
    explicit counting_iterator(T first) : emu_indexed<emu_count<T>>({}, std::ptrdiff_t(first)) {}
    counting_iterator(const emu_indexed<emu_count<T>>& i) : emu_indexed<emu_count<T>>(i) {}
};
template <class T> counting_iterator<T> make_counting_iterator(T first) {
    return counting_iterator<T>(first);
}
template <class T> struct emu_constant {
    T value;
    T operator()(std::ptrdiff_t) const { return value; }
};
template <class T> emu_indexed<emu_constant<T>> make_constant_iterator(T value) {
    return emu_indexed<emu_constant<T>>({value});
}
template <class F, class I> struct emu_mapped {
    F f;
    I from;
    auto operator()(std::ptrdiff_t n) const {
        typename std::iterator_traits<I>::value_type value = from[n];
        return f(value);
    }
};
template <class I, class F> auto make_transform_iterator(I from, F f) {
    return emu_indexed<emu_mapped<F, I>>({f, from});
}
struct emu_nowhere {
    template <class T> const emu_nowhere& operator=(const T&) const { return *this; }
};
struct emu_discard { emu_nowhere operator()(std::ptrdiff_t) const { return {}; } };
inline emu_indexed<emu_discard> make_discard_iterator() { return emu_indexed<emu_discard>({}); }
// Several at once: a tuple of references.
template <class Tuple> class zip_iterator;
template <class... I> class zip_iterator<std::tuple<I...>> {
  public:
    typedef std::tuple<typename std::iterator_traits<I>::value_type...> value_type;
    typedef std::tuple<typename std::iterator_traits<I>::reference...> reference;
    typedef std::ptrdiff_t difference_type;
    typedef void pointer;
    typedef std::random_access_iterator_tag iterator_category;
    zip_iterator(std::tuple<I...> all) : all(all) {}
    reference operator*() const { return (*this)[0]; }
    reference operator[](std::ptrdiff_t n) const {
        return std::apply([n](const I&... i) { return reference(i[n]...); }, all);
    }
    zip_iterator& operator+=(std::ptrdiff_t n) {
        std::apply([n](I&... i) { ((i += n), ...); }, all);
        return *this;
    }
    zip_iterator& operator++() { return *this += 1; }
    friend zip_iterator operator+(zip_iterator i, std::ptrdiff_t n) { return i += n; }
    friend std::ptrdiff_t operator-(const zip_iterator& a, const zip_iterator& b) {
        return std::get<0>(a.all) - std::get<0>(b.all);
    }
    friend bool operator==(const zip_iterator& a, const zip_iterator& b) { return a - b == 0; }
    friend bool operator!=(const zip_iterator& a, const zip_iterator& b) { return a - b != 0; }

  private:
    std::tuple<I...> all;
};
template <class... I> zip_iterator<std::tuple<I...>> make_zip_iterator(std::tuple<I...> all) {
    return {all};
}

// ---- algorithms ---------------------------------------------------------------------------------
// Each also behind the place where it shall run.
#define EMU_ALGORITHM(name)                                                                     \
    template <class... A> auto name(const emu_policy&, A&&... a) { return name(std::forward<A>(a)...); }

template <class I, class O> O copy(I first, I last, O to) {
    return emu_detail::write(emu_detail::values(first, last), to);
}
template <class I, class O> O copy_n(I first, size_t n, O to) { return copy(first, first + n, to); }
template <class I, class T> void fill(I first, I last, const T& value) {
    typedef typename std::iterator_traits<I>::value_type V;
    emu_detail::write(std::vector<V>(size_t(last - first), V(value)), first);
}
template <class I, class F> void generate(I first, I last, F f) {
    std::vector<typename std::iterator_traits<I>::value_type> all(size_t(last - first));
    for (auto& one : all) one = f();
    emu_detail::write(all, first);
}
template <class I, class T = int, class S = int>
void sequence(I first, I last, T start = T(0), S step = S(1)) {
    typedef typename std::iterator_traits<I>::value_type V;
    std::vector<V> all(size_t(last - first));
    for (size_t i = 0; i < all.size(); ++i) all[i] = V(start + V(i) * step);
    emu_detail::write(all, first);
}
template <class I, class F> I for_each(I first, I last, F f) {
    for (; first != last; ++first) f(*first);
    return first;
}
template <class I, class O, class F> O transform(I first, I last, O to, F f) {
    auto all = emu_detail::values(first, last);
    std::vector<std::decay_t<decltype(f(all[0]))>> out;
    for (const auto& one : all) out.push_back(f(one));
    return emu_detail::write(out, to);
}
template <class I, class J, class O, class F> O transform(I first, I last, J other, O to, F f) {
    auto all = emu_detail::values(first, last);
    auto more = emu_detail::values(other, other + std::ptrdiff_t(all.size()));
    std::vector<std::decay_t<decltype(f(all[0], more[0]))>> out;
    for (size_t i = 0; i < all.size(); ++i) out.push_back(f(all[i], more[i]));
    return emu_detail::write(out, to);
}
template <class I, class T, class F> T reduce(I first, I last, T sum, F f) {
    for (const auto& one : emu_detail::values(first, last)) sum = f(sum, one);
    return sum;
}
template <class I, class T> T reduce(I first, I last, T sum) { return reduce(first, last, sum, plus<T>()); }
template <class I> auto reduce(I first, I last) {
    return reduce(first, last, typename std::iterator_traits<I>::value_type());
}
template <class I, class U, class T, class F>
T transform_reduce(I first, I last, U each, T sum, F f) {
    for (const auto& one : emu_detail::values(first, last)) sum = f(sum, each(one));
    return sum;
}
template <class I, class J, class T> T inner_product(I first, I last, J other, T sum) {
    for (; first != last; ++first, ++other) sum = sum + T(*first) * T(*other);
    return sum;
}
template <class I, class O, class F> O inclusive_scan(I first, I last, O to, F f) {
    auto all = emu_detail::values(first, last);
    for (size_t i = 1; i < all.size(); ++i) all[i] = f(all[i - 1], all[i]);
    return emu_detail::write(all, to);
}
template <class I, class O> O inclusive_scan(I first, I last, O to) {
    return inclusive_scan(first, last, to, plus<typename std::iterator_traits<I>::value_type>());
}
template <class I, class O, class T, class F> O exclusive_scan(I first, I last, O to, T start, F f) {
    std::vector<T> out;
    for (const auto& one : emu_detail::values(first, last)) {
        out.push_back(start);
        start = f(start, T(one));
    }
    return emu_detail::write(out, to);
}
template <class I, class O, class T> O exclusive_scan(I first, I last, O to, T start) {
    return exclusive_scan(first, last, to, start, plus<T>());
}
template <class I, class O> O exclusive_scan(I first, I last, O to) {
    return exclusive_scan(first, last, to, typename std::iterator_traits<I>::value_type());
}
template <class K, class I, class O, class E = equal_to<>, class F = plus<>>
O inclusive_scan_by_key(K first, K last, I values, O to, E same = E(), F f = F()) {
    auto keys = emu_detail::values(first, last);
    auto all = emu_detail::values(values, values + std::ptrdiff_t(keys.size()));
    for (size_t i = 1; i < all.size(); ++i)
        if (same(keys[i - 1], keys[i])) all[i] = f(all[i - 1], all[i]);
    return emu_detail::write(all, to);
}
template <class I, class O, class F = minus<>>
O adjacent_difference(I first, I last, O to, F f = F()) {
    auto all = emu_detail::values(first, last);
    std::vector<std::decay_t<decltype(f(all[0], all[0]))>> out(all.begin(), all.begin() + !all.empty());
    for (size_t i = 1; i < all.size(); ++i) out.push_back(f(all[i], all[i - 1]));
    return emu_detail::write(out, to);
}
template <class I, class F = less<>> void sort(I first, I last, F f = F()) {
    auto all = emu_detail::values(first, last);
    std::stable_sort(all.begin(), all.end(), f);
    emu_detail::write(all, first);
}
template <class I, class F = less<>> void stable_sort(I first, I last, F f = F()) {
    thrust::sort(first, last, f);
}
template <class K, class I, class F = less<>> void sort_by_key(K first, K last, I values, F f = F()) {
    auto keys = emu_detail::values(first, last);
    auto all = emu_detail::values(values, values + std::ptrdiff_t(keys.size()));
    std::vector<size_t> order(keys.size());
    std::iota(order.begin(), order.end(), size_t(0));
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return f(keys[a], keys[b]); });
    auto sorted = keys;
    auto moved = all;
    for (size_t i = 0; i < order.size(); ++i) sorted[i] = keys[order[i]], moved[i] = all[order[i]];
    emu_detail::write(sorted, first);
    emu_detail::write(moved, values);
}
template <class K, class I, class F = less<>>
void stable_sort_by_key(K first, K last, I values, F f = F()) {
    thrust::sort_by_key(first, last, values, f);
}
template <class I, class F = less<>> bool is_sorted(I first, I last, F f = F()) {
    auto all = emu_detail::values(first, last);
    return std::is_sorted(all.begin(), all.end(), f);
}
template <class I, class T> std::ptrdiff_t count(I first, I last, const T& value) {
    auto all = emu_detail::values(first, last);
    return std::count(all.begin(), all.end(), value);
}
template <class I, class F> std::ptrdiff_t count_if(I first, I last, F f) {
    auto all = emu_detail::values(first, last);
    return std::count_if(all.begin(), all.end(), f);
}
template <class I, class F> I find_if(I first, I last, F f) {
    auto all = emu_detail::values(first, last);
    return first + (std::find_if(all.begin(), all.end(), f) - all.begin());
}
template <class I, class F = less<>> I max_element(I first, I last, F f = F()) {
    auto all = emu_detail::values(first, last);
    return first + (std::max_element(all.begin(), all.end(), f) - all.begin());
}
template <class I, class F = less<>> I min_element(I first, I last, F f = F()) {
    auto all = emu_detail::values(first, last);
    return first + (std::min_element(all.begin(), all.end(), f) - all.begin());
}
template <class I, class J> bool equal(I first, I last, J other) {
    auto all = emu_detail::values(first, last);
    return all == emu_detail::values(other, other + std::ptrdiff_t(all.size()));
}
template <class I> I unique(I first, I last) {
    auto all = emu_detail::values(first, last);
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return emu_detail::write(all, first);
}
template <class I, class F> I remove_if(I first, I last, F f) {
    auto all = emu_detail::values(first, last);
    all.erase(std::remove_if(all.begin(), all.end(), f), all.end());
    return emu_detail::write(all, first);
}
template <class I, class O, class F> O copy_if(I first, I last, O to, F f) {
    auto all = emu_detail::values(first, last);
    all.erase(std::remove_if(all.begin(), all.end(), [&](const auto& x) { return !f(x); }), all.end());
    return emu_detail::write(all, to);
}
template <class M, class I, class O> O gather(M first, M last, I from, O to) {
    std::vector<typename std::iterator_traits<I>::value_type> out;
    for (auto at : emu_detail::values(first, last)) out.push_back(from[std::ptrdiff_t(at)]);
    return emu_detail::write(out, to);
}
template <class I, class M, class O> void scatter(I first, I last, M map, O to) {
    for (; first != last; ++first, ++map) {
        typename std::iterator_traits<I>::value_type value = *first;
        to[std::ptrdiff_t(*map)] = value;
    }
}
template <class K, class I, class P, class O, class E = equal_to<>>
std::pair<P, O> unique_by_key_copy(K first, K last, I values, P keys_to, O to, E same = E()) {
    auto keys = emu_detail::values(first, last);
    auto all = emu_detail::values(values, values + std::ptrdiff_t(keys.size()));
    decltype(keys) own;
    decltype(all) out;
    for (size_t i = 0; i < keys.size(); ++i)
        if (i == 0 || !same(keys[i - 1], keys[i])) own.push_back(keys[i]), out.push_back(all[i]);
    return {emu_detail::write(own, keys_to), emu_detail::write(out, to)};
}
template <class K, class I, class E = equal_to<>>
std::pair<K, I> unique_by_key(K first, K last, I values, E same = E()) {
    return unique_by_key_copy(first, last, values, first, values, same);
}
template <class K, class I, class P, class O, class E = equal_to<>, class F = plus<>>
std::pair<P, O> reduce_by_key(K first, K last, I values, P keys_to, O to, E same = E(), F f = F()) {
    auto keys = emu_detail::values(first, last);
    auto all = emu_detail::values(values, values + std::ptrdiff_t(keys.size()));
    decltype(keys) own;
    decltype(all) out;
    for (size_t i = 0; i < keys.size(); ++i) {
        if (i > 0 && same(keys[i - 1], keys[i])) out.back() = f(out.back(), all[i]);
        else own.push_back(keys[i]), out.push_back(all[i]);
    }
    return {emu_detail::write(own, keys_to), emu_detail::write(out, to)};
}
EMU_ALGORITHM(copy)
EMU_ALGORITHM(copy_if)
EMU_ALGORITHM(count)
EMU_ALGORITHM(count_if)
EMU_ALGORITHM(exclusive_scan)
EMU_ALGORITHM(fill)
EMU_ALGORITHM(find_if)
EMU_ALGORITHM(for_each)
EMU_ALGORITHM(gather)
EMU_ALGORITHM(generate)
EMU_ALGORITHM(inclusive_scan)
EMU_ALGORITHM(inclusive_scan_by_key)
EMU_ALGORITHM(max_element)
EMU_ALGORITHM(min_element)
EMU_ALGORITHM(reduce)
EMU_ALGORITHM(reduce_by_key)
EMU_ALGORITHM(remove_if)
EMU_ALGORITHM(sequence)
EMU_ALGORITHM(sort)
EMU_ALGORITHM(sort_by_key)
EMU_ALGORITHM(stable_sort_by_key)
EMU_ALGORITHM(transform)
EMU_ALGORITHM(transform_reduce)
EMU_ALGORITHM(unique)
#undef EMU_ALGORITHM

// ---- random numbers: the same kinds, and not the same numbers ------------------------------------
namespace random {
typedef std::minstd_rand minstd_rand, default_random_engine;
template <class T> using uniform_real_distribution = std::uniform_real_distribution<T>;
template <class T> using uniform_int_distribution = std::uniform_int_distribution<T>;
template <class T> using normal_distribution = std::normal_distribution<T>;
}  // namespace random
using random::default_random_engine;
using random::minstd_rand;
using random::uniform_int_distribution;
using random::uniform_real_distribution;
}  // namespace thrust
