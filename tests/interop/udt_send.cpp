// Sends the pattern over one libudt connection, waits until the peer has it, closes, and prints
// what went.
#include "peer.hpp"

static const char HELP[] =
    "udt_send HOST PORT stream|dgram BYTES [--seed NUMBER] [--message BYTES] [--ttl MILLISECONDS] [--in-order] "
    "[--rendezvous] [--bind ADDRESS] [--local-port PORT] [--mss BYTES] [--window PACKETS] [--timeout SECONDS]";

// All of `data`, however libudt takes it.
static void send_stream(UDTSOCKET socket, const char* data, size_t len) {
    size_t done = 0;
    while (done < len) {
        const int sent = UDT::send(socket, data + done, static_cast<int>(len - done), 0);
        if (sent == UDT::ERROR) peer::fail("cannot send");
        done += static_cast<size_t>(sent);
    }
}

int main(int argc, char** argv) {
    const peer::Arguments arguments(argc, argv, {"--rendezvous", "--in-order"},
                                    {"--seed", "--message", "--ttl", "--bind", "--local-port", "--mss", "--window",
                                     "--timeout"},
                                    HELP);
    if (arguments.words.size() != 4) peer::usage(HELP);
    peer::limit_time(static_cast<unsigned>(arguments.number("--timeout", 60)));
    const peer::Address remote = peer::address(arguments.words[0], peer::Arguments::parse(arguments.words[1]));
    const bool dgram = peer::parse_mode(arguments.words[2], HELP);
    const uint64_t bytes = peer::Arguments::parse(arguments.words[3]);
    const uint64_t seed = arguments.number("--seed", 1);
    const uint64_t piece = arguments.number("--message", dgram ? 1456 : 1 << 16);
    const int ttl = arguments.has("--ttl") ? static_cast<int>(arguments.number("--ttl", 0)) : -1;
    if (piece == 0 || piece > 1 << 20) peer::usage(HELP);

    UDT::startup();
    const UDTSOCKET socket = peer::open_socket(remote.family(), dgram, arguments);
    if (arguments.has("--rendezvous")) peer::set_option(socket, UDT_RENDEZVOUS, true, "cannot ask for a rendezvous");
    if (arguments.has("--bind") || arguments.has("--local-port")) {
        peer::bind_to(socket,
                      peer::address(arguments.text("--bind", "127.0.0.1"), arguments.number("--local-port", 0)));
    }
    peer::connect_to(socket, remote);

    peer::Tally tally;
    std::vector<char> buffer(piece);
    while (tally.bytes < bytes) {
        const size_t len = static_cast<size_t>(std::min<uint64_t>(piece, bytes - tally.bytes));
        peer::fill_pattern(seed, tally.bytes, buffer.data(), len);
        if (dgram) {
            const int sent =
                UDT::sendmsg(socket, buffer.data(), static_cast<int>(len), ttl, arguments.has("--in-order"));
            if (sent == UDT::ERROR) peer::fail("cannot send");
            tally.add_message(buffer.data(), len);
        } else {
            send_stream(socket, buffer.data(), len);
            tally.add_stream(buffer.data(), len);
        }
    }
    tally.print("sent", dgram);
    // Waits until everything is acknowledged (UDT_LINGER, 180 s).
    if (UDT::close(socket) == UDT::ERROR) peer::fail("cannot close");
    UDT::cleanup();
    return 0;
}
