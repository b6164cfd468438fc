// Receives one libudt connection to its end and prints what came.
#include "peer.hpp"

static const char HELP[] =
    "udt_recv PORT stream|dgram [--bind ADDRESS] [--rendezvous HOST --peer-port PORT] [--mss BYTES] "
    "[--window PACKETS] [--timeout SECONDS]";

int main(int argc, char** argv) {
    const peer::Arguments arguments(
        argc, argv, {}, {"--bind", "--rendezvous", "--peer-port", "--mss", "--window", "--timeout"}, HELP);
    if (arguments.words.size() != 2) peer::usage(HELP);
    peer::limit_time(static_cast<unsigned>(arguments.number("--timeout", 60)));
    const bool dgram = peer::parse_mode(arguments.words[1], HELP);
    const peer::Address local =
        peer::address(arguments.text("--bind", "127.0.0.1"), peer::Arguments::parse(arguments.words[0]));

    UDT::startup();
    UDTSOCKET socket = peer::open_socket(local.family(), dgram, arguments);
    if (arguments.has("--rendezvous")) {
        const peer::Address remote =
            peer::address(arguments.text("--rendezvous", ""), arguments.number("--peer-port", 0));
        peer::set_option(socket, UDT_RENDEZVOUS, true, "cannot ask for a rendezvous");
        peer::bind_to(socket, local);
        peer::announce(socket, "meeting");
        peer::connect_to(socket, remote);
    } else {
        peer::bind_to(socket, local);
        if (UDT::listen(socket, 1) == UDT::ERROR) peer::fail("cannot listen");
        peer::announce(socket, "listening");
        const UDTSOCKET listener = socket;
        socket = peer::accept_one(listener);
        UDT::close(listener);
    }

    peer::Tally tally;
    std::vector<char> buffer(1 << 20);
    const int room = static_cast<int>(buffer.size());
    for (;;) {
        const int got =
            dgram ? UDT::recvmsg(socket, buffer.data(), room) : UDT::recv(socket, buffer.data(), room, 0);
        if (got == UDT::ERROR) {
            if (peer::at_end()) break;
            peer::fail("cannot receive");
        }
        if (dgram) {
            tally.add_message(buffer.data(), static_cast<size_t>(got));
        } else {
            tally.add_stream(buffer.data(), static_cast<size_t>(got));
        }
    }
    tally.print("received", dgram);
    UDT::close(socket);
    UDT::cleanup();
    return 0;
}
