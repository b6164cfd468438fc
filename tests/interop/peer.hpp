// What the libudt peers share: the byte pattern, the checksum, the command line, sockets bounded in
// time.
#pragma once

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <udt/udt.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace peer {

enum Exit { FAILED = 1, USAGE = 2, TIMED_OUT = 124 };

[[noreturn]] inline void fail(const std::string& what) {
    std::fprintf(stderr, "%s: %s\n", what.c_str(), UDT::getlasterror().getErrorMessage());
    std::exit(FAILED);
}

[[noreturn]] inline void usage(const char* text) {
    std::fprintf(stderr, "usage: %s\n", text);
    std::exit(USAGE);
}

// Ends the process after `seconds`, whatever libudt waits for.
inline void limit_time(unsigned seconds) {
    std::signal(SIGALRM, [](int) {
        static const char text[] = "timed out\n";
        const ssize_t ignored = write(2, text, sizeof text - 1);
        (void)ignored;
        _exit(TIMED_OUT);
    });
    alarm(seconds);
}

// `--name VALUE` and `--flag` anywhere, the rest in order.
struct Arguments {
    std::vector<std::string> words;
    std::map<std::string, std::string> options;

    Arguments(int argc, char** argv, const std::vector<std::string>& flags, const std::vector<std::string>& names,
              const char* help) {
        for (int i = 1; i < argc; i++) {
            const std::string word = argv[i];
            if (word.rfind("--", 0) != 0) {
                words.push_back(word);
            } else if (contains(flags, word)) {
                options[word] = "";
            } else if (contains(names, word) && i + 1 < argc) {
                options[word] = argv[++i];
            } else {
                std::fprintf(stderr, "unknown option or missing value: %s\n", word.c_str());
                usage(help);
            }
        }
    }

    bool has(const std::string& name) const { return options.count(name) != 0; }

    std::string text(const std::string& name, const std::string& otherwise) const {
        const auto found = options.find(name);
        return found == options.end() ? otherwise : found->second;
    }

    uint64_t number(const std::string& name, uint64_t otherwise) const {
        return has(name) ? parse(options.at(name)) : otherwise;
    }

    static uint64_t parse(const std::string& text) {
        char* end = nullptr;
        const uint64_t value = std::strtoull(text.c_str(), &end, 10);
        if (text.empty() || *end != 0 || text[0] == '-') {
            std::fprintf(stderr, "not a number: %s\n", text.c_str());
            std::exit(USAGE);
        }
        return value;
    }

  private:
    static bool contains(const std::vector<std::string>& list, const std::string& word) {
        for (const auto& item : list) {
            if (item == word) return true;
        }
        return false;
    }
};

// Word `index` of the pattern, little-endian on the wire (splitmix64).
inline uint64_t pattern_word(uint64_t seed, uint64_t index) {
    uint64_t z = seed + (index + 1) * 0x9e3779b97f4a7c15ULL;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
}

// The bytes of the pattern from `offset` on.
inline void fill_pattern(uint64_t seed, uint64_t offset, char* out, size_t len) {
    for (size_t i = 0; i < len; i++) {
        const uint64_t place = offset + i;
        out[i] = static_cast<char>(pattern_word(seed, place / 8) >> (8 * (place % 8)));
    }
}

// FNV-1a, 64 bits.
struct Fnv {
    uint64_t state = 0xcbf29ce484222325ULL;

    void add(const char* bytes, size_t len) {
        for (size_t i = 0; i < len; i++) {
            state = (state ^ static_cast<unsigned char>(bytes[i])) * 0x100000001b3ULL;
        }
    }
};

// What went through a connection. The checksum of messages does not depend on their order: the sum
// of theirs.
struct Tally {
    uint64_t bytes = 0;
    uint64_t messages = 0;
    uint64_t sum = 0;
    Fnv stream;

    void add_stream(const char* data, size_t len) {
        bytes += len;
        stream.add(data, len);
    }

    void add_message(const char* data, size_t len) {
        Fnv one;
        one.add(data, len);
        bytes += len;
        messages++;
        sum += one.state;
    }

    void print(const char* what, bool dgram) const {
        std::printf("%s %llu messages %llu fnv1a %016llx\n", what, static_cast<unsigned long long>(bytes),
                    static_cast<unsigned long long>(messages),
                    static_cast<unsigned long long>(dgram ? sum : stream.state));
        std::fflush(stdout);
    }
};

inline bool parse_mode(const std::string& mode, const char* help) {
    if (mode != "stream" && mode != "dgram") usage(help);
    return mode == "dgram";
}

// An address of either family.
struct Address {
    sockaddr_storage storage{};
    int len = sizeof(sockaddr_storage);

    int family() const { return storage.ss_family; }
    sockaddr* raw() { return reinterpret_cast<sockaddr*>(&storage); }
    const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// What has a colon in it is IPv6, the rest IPv4.
inline Address address(const std::string& host, uint64_t port) {
    addrinfo hints{};
    hints.ai_family = host.find(':') == std::string::npos ? AF_INET : AF_INET6;
    hints.ai_socktype = SOCK_DGRAM;
    addrinfo* found = nullptr;
    if (port > 65535 || getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
        std::fprintf(stderr, "no such address: %s port %llu\n", host.c_str(), static_cast<unsigned long long>(port));
        std::exit(USAGE);
    }
    Address out;
    out.len = static_cast<int>(found->ai_addrlen);
    std::memcpy(&out.storage, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return out;
}

template <typename T>
void set_option(UDTSOCKET socket, UDTOpt name, T value, const char* what) {
    if (UDT::setsockopt(socket, 0, name, &value, sizeof value) == UDT::ERROR) fail(what);
}

// `--mss BYTES` and `--window PACKETS` (flight window and all buffers); libudt's own values when
// not given.
inline UDTSOCKET open_socket(int family, bool dgram, const Arguments& arguments) {
    const UDTSOCKET socket = UDT::socket(family, dgram ? SOCK_DGRAM : SOCK_STREAM, 0);
    if (socket == UDT::INVALID_SOCK) fail("cannot make a socket");
    const int mss = static_cast<int>(arguments.number("--mss", 1500));
    set_option(socket, UDT_MSS, mss, "cannot set the packet size");
    if (arguments.has("--window")) {
        const int packets = static_cast<int>(arguments.number("--window", 0));
        const int bytes = packets * (mss - 28);
        set_option(socket, UDT_FC, packets, "cannot set the flight window");
        set_option(socket, UDT_SNDBUF, bytes, "cannot set the send buffer");
        set_option(socket, UDT_RCVBUF, bytes, "cannot set the receive buffer");
        set_option(socket, UDP_SNDBUF, bytes, "cannot set the UDP send buffer");
        set_option(socket, UDP_RCVBUF, bytes, "cannot set the UDP receive buffer");
    }
    return socket;
}

inline void bind_to(UDTSOCKET socket, const Address& local) {
    if (UDT::bind(socket, local.raw(), local.len) == UDT::ERROR) fail("cannot bind");
}

inline void connect_to(UDTSOCKET socket, const Address& remote) {
    if (UDT::connect(socket, remote.raw(), remote.len) == UDT::ERROR) fail("cannot connect");
}

// Says on standard output that a peer may come, and where.
inline void announce(UDTSOCKET socket, const char* what) {
    Address local;
    if (UDT::getsockname(socket, local.raw(), &local.len) == UDT::ERROR) fail("cannot read the port");
    // The port is in the same place in both families.
    const in_port_t port = reinterpret_cast<const sockaddr_in*>(&local.storage)->sin_port;
    std::printf("%s %u\n", what, static_cast<unsigned>(ntohs(port)));
    std::fflush(stdout);
}

inline UDTSOCKET accept_one(UDTSOCKET listener) {
    Address from;
    const UDTSOCKET socket = UDT::accept(listener, from.raw(), &from.len);
    if (socket == UDT::INVALID_SOCK) fail("cannot accept");
    return socket;
}

// The peer has closed, and all that it sent has been read.
inline bool at_end() {
    const int code = UDT::getlasterror().getErrorCode();
    return code == UDT::ERRORINFO::ECONNLOST || code == UDT::ERRORINFO::ENOCONN;
}

inline double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

inline double cpu_seconds(bool system) {
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    const timeval& time = system ? used.ru_stime : used.ru_utime;
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

}  // namespace peer
