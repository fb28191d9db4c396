// What a program that nvcc has built asks of the tool that has started it: the tool's process has the emulator, the program's
// has its host code. Device memory is a file that both map at the same addresses (shared/app/src/built).
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

namespace emu {
namespace cudart {
// As shared/app/src/built/message.rs has them.
enum Question : uint32_t { REGISTER, KERNEL, LAUNCH, ALLOCATE, RELEASE, COPY, FILL, TYPE_OF, VARIABLE, WRITE, READ, REFUSE };
struct Request {
    uint32_t question, bytes;
    uint64_t words[8];
};
struct Reply {
    int32_t code;
    uint32_t bytes;
    uint64_t words[8];
};

class Connection {
    std::recursive_mutex mutex;
    int socket = -1, process = 0, file = -1;
    unsigned long base = 0;
    bool is_tried = false;

    // LAB_CUDART is SOCKET:FILE:BASE:SIZE. What this process starts is not the tool's.
    void open() {
        is_tried = true;
        process = getpid();
        const char* given = getenv("LAB_CUDART");
        unsigned long size;
        if (!given || sscanf(given, "%d:%d:%lx:%lx", &socket, &file, &base, &size) != 4) {
            fprintf(stderr, "libcudart of the emulator: expected a program that `lab app PROGRAM` has started\n");
            socket = -1;
            return;
        }
        unsetenv("LAB_CUDART");
        fcntl(socket, F_SETFD, FD_CLOEXEC);
        fcntl(file, F_SETFD, FD_CLOEXEC);
        void* at = mmap((void*)base, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE, file, 0);
        if (at != (void*)base) {
            fprintf(stderr, "libcudart of the emulator: device memory at %#lx: %s\n", base, strerror(errno));
            socket = -1;
        }
    }
    bool send(const void* from, size_t bytes) {
        for (auto at = (const char*)from; bytes;) {
            ssize_t sent = ::send(socket, at, bytes, MSG_NOSIGNAL);
            if (sent < 0 && errno == EINTR) continue;
            if (sent <= 0) return false;
            at += sent, bytes -= size_t(sent);
        }
        return true;
    }
    bool receive(void* to, size_t bytes) {
        for (auto at = (char*)to; bytes;) {
            ssize_t got = recv(socket, at, bytes, 0);
            if (got < 0 && errno == EINTR) continue;
            if (got <= 0) return false;
            at += got, bytes -= size_t(got);
        }
        return true;
    }

  public:
    // Of a call that has more than one question.
    std::unique_lock<std::recursive_mutex> lock() { return std::unique_lock<std::recursive_mutex>(mutex); }
    // A process that the program has forked has no device, as on a GPU.
    bool is_open() {
        auto held = lock();
        if (!is_tried) open();
        return socket >= 0 && process == getpid();
    }
    // Puts device memory in the place of whole pages of the program's, with what they hold; whether that is done.
    bool replace(char* pages, size_t bytes, char* device) {
        memcpy(device, pages, bytes);
        return mmap(pages, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, off_t(uint64_t(device) - base)) == pages;
    }
    // The answer; what comes with it goes to `more`, or is dropped.
    Reply ask(Question question, const std::vector<uint64_t>& words, const void* with = nullptr, size_t bytes = 0,
              std::vector<char>* more = nullptr) {
        auto held = lock();
        Request request = {question, uint32_t(bytes), {}};
        for (size_t n = 0; n < words.size() && n < 8; ++n) request.words[n] = words[n];
        Reply reply = {int32_t(is_tried ? 3 : 100), 0, {}};
        if (!is_open()) return reply;
        std::vector<char> own;
        bool done = send(&request, sizeof request) && send(with, bytes) && receive(&reply, sizeof reply);
        if (done) {
            own.resize(reply.bytes);
            done = receive(own.data(), own.size());
        }
        // The tool has gone, as at the end of its time.
        if (!done) _exit(1);
        if (more) *more = std::move(own);
        return reply;
    }
};
inline Connection& connection() {
    static Connection* one = new Connection;  // used by what runs at the program's end
    return *one;
}
}  // namespace cudart
}  // namespace emu
