// Measures libudt, one stream, memory to memory. Each end prints one line of JSON.
#include "peer.hpp"

static const char HELP[] =
    "udt_bench recv PORT | udt_bench send HOST PORT SECONDS   [--bind ADDRESS] [--mss BYTES] [--window PACKETS] "
    "[--timeout SECONDS]";

static const int PIECE = 1 << 18;
static const int INTERVAL_MS = 100;

static void print_cpu_and_end() {
    std::printf(",\"cpu_user_s\":%.3f,\"cpu_system_s\":%.3f}\n", peer::cpu_seconds(false), peer::cpu_seconds(true));
    std::fflush(stdout);
}

static int receive(const peer::Arguments& arguments) {
    const peer::Address local =
        peer::address(arguments.text("--bind", "127.0.0.1"), peer::Arguments::parse(arguments.words[1]));
    const UDTSOCKET listener = peer::open_socket(local.family(), false, arguments);
    peer::bind_to(listener, local);
    if (UDT::listen(listener, 1) == UDT::ERROR) peer::fail("cannot listen");
    std::fprintf(stderr, "listening\n");
    const UDTSOCKET socket = peer::accept_one(listener);

    std::vector<char> buffer(PIECE);
    // How many bytes had come by the end of each interval since the first.
    std::vector<uint64_t> intervals;
    uint64_t bytes = 0;
    double last = 0;
    UDT::TRACEINFO trace{};
    std::chrono::steady_clock::time_point start{};
    for (;;) {
        const int got = UDT::recv(socket, buffer.data(), PIECE, 0);
        if (got == UDT::ERROR) {
            if (peer::at_end()) break;
            peer::fail("cannot receive");
        }
        if (bytes == 0) start = std::chrono::steady_clock::now();
        last = peer::seconds_since(start);
        const size_t interval = static_cast<size_t>(last * 1000 / INTERVAL_MS);
        if (intervals.size() <= interval) intervals.resize(interval + 1, bytes);
        bytes += static_cast<uint64_t>(got);
        intervals[interval] = bytes;
        UDT::perfmon(socket, &trace, false);
    }
    std::printf("{\"role\":\"receiver\",\"seconds\":%.6f,\"bytes\":%llu,\"packets_received\":%lld,\"packets_lost\":%d,"
                "\"naks_sent\":%d,\"interval_ms\":%d,\"bytes_by_interval\":[",
                last, static_cast<unsigned long long>(bytes), static_cast<long long>(trace.pktRecvTotal),
                trace.pktRcvLossTotal, trace.pktSentNAKTotal, INTERVAL_MS);
    for (size_t i = 0; i < intervals.size(); i++) {
        std::printf("%s%llu", i == 0 ? "" : ",", static_cast<unsigned long long>(intervals[i]));
    }
    std::printf("]");
    print_cpu_and_end();
    return 0;
}

static int send(const peer::Arguments& arguments) {
    const peer::Address remote = peer::address(arguments.words[1], peer::Arguments::parse(arguments.words[2]));
    const double seconds = static_cast<double>(peer::Arguments::parse(arguments.words[3]));
    const UDTSOCKET socket = peer::open_socket(remote.family(), false, arguments);
    // When the time is up, what is still on its way is not waited for.
    peer::set_option(socket, UDT_LINGER, linger{0, 0}, "cannot set the time to linger");
    // A send that waits for room must still notice that the time is up.
    peer::set_option(socket, UDT_SNDTIMEO, 100, "cannot set the time-out");
    peer::connect_to(socket, remote);

    std::vector<char> buffer(PIECE);
    peer::fill_pattern(1, 0, buffer.data(), buffer.size());
    uint64_t bytes = 0;
    const auto start = std::chrono::steady_clock::now();
    while (peer::seconds_since(start) < seconds) {
        const int sent = UDT::send(socket, buffer.data(), PIECE, 0);
        if (sent == UDT::ERROR) {
            if (UDT::getlasterror().getErrorCode() == UDT::ERRORINFO::ETIMEOUT) continue;
            peer::fail("cannot send");
        }
        bytes += static_cast<uint64_t>(sent);
    }
    const double elapsed = peer::seconds_since(start);
    UDT::TRACEINFO trace{};
    if (UDT::perfmon(socket, &trace, false) == UDT::ERROR) peer::fail("cannot read the counters");
    std::printf("{\"role\":\"sender\",\"seconds\":%.6f,\"bytes\":%llu,\"packets_sent\":%lld,\"packets_retransmitted\":%d,"
                "\"packets_reported_lost\":%d,\"rtt_ms\":%.3f",
                elapsed, static_cast<unsigned long long>(bytes), static_cast<long long>(trace.pktSentTotal),
                trace.pktRetransTotal, trace.pktSndLossTotal, trace.msRTT);
    print_cpu_and_end();
    UDT::close(socket);
    return 0;
}

int main(int argc, char** argv) {
    const peer::Arguments arguments(argc, argv, {}, {"--bind", "--mss", "--window", "--timeout"}, HELP);
    peer::limit_time(static_cast<unsigned>(arguments.number("--timeout", 120)));
    UDT::startup();
    int status = peer::USAGE;
    const size_t words = arguments.words.size();
    if (words == 2 && arguments.words[0] == "recv") {
        status = receive(arguments);
    } else if (words == 4 && arguments.words[0] == "send") {
        status = send(arguments);
    } else {
        peer::usage(HELP);
    }
    UDT::cleanup();
    return status;
}
