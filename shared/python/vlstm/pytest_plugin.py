"""`pytest --vlstm-triton`: the launches of Triton's kernels in a suite of tests run on the emulator, checked, without a GPU."""

import collections

import pytest

# Of a test: what had been counted before it.
STARTED = pytest.StashKey()


def pytest_addoption(parser):
    group = parser.getgroup("vlstm", "kernels of Triton on the emulator of vLSTM")
    group.addoption(
        "--vlstm-triton",
        action="store_true",
        help="run launches of Triton's kernels on the emulator, with every access checked; tensors stay on the CPU",
    )
    group.addoption("--vlstm-arch", default="sm_90", metavar="ARCH", help="the GPU to compile for (sm_90)")
    group.addoption(
        "--vlstm-timeout", type=int, default=60, metavar="SECONDS", help="a launch that takes longer is skipped (60)"
    )
    group.addoption(
        "--vlstm-strict", action="store_true", help="what is wrong by the letter alone, and right on GPUs, is an error"
    )


def pytest_configure(config):
    if config.getoption("--vlstm-triton"):
        config.pluginmanager.register(Launches(config), "vlstm-launches")


class Launches:
    """What runs on the emulator, from the collection of tests on: modules ask for a GPU when they are imported."""

    def __init__(self, config):
        try:
            from vlstm._cuda_on_cpu import CudaOnCpu
            from vlstm._triton_gpu import Gpu

            self.gpu = Gpu(
                config.getoption("--vlstm-arch"),
                timeout=config.getoption("--vlstm-timeout"),
                refuse=skip,
                strict=config.getoption("--vlstm-strict"),
            )
            self.gpu.__enter__()
        except (ImportError, ValueError) as error:
            raise pytest.UsageError(f"--vlstm-triton: {error}") from error
        self.cuda = CudaOnCpu(self.gpu.capability)
        self.cuda.__enter__()
        # By kernels, of all processes of the suite.
        self.ran, self.found, self.skipped = collections.Counter(), collections.Counter(), collections.Counter()

    def pytest_unconfigure(self):
        self.cuda.__exit__(None, None, None)
        self.gpu.__exit__(None, None, None)

    def pytest_report_header(self):
        return (
            f"vlstm: kernels of Triton run on the emulator as on sm_{self.gpu.number}; tensors asked for on cuda are made on "
            "the CPU, and each says that it is on cuda:0"
        )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        item.stash[STARTED] = (self.gpu.ran.copy(), len(self.gpu.found), len(self.gpu.refused))
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        before = len(self.gpu.found)
        result = yield
        # A finding that the tested code has caught is a finding.
        for kernel, text in self.gpu.found[before:]:
            pytest.fail(text, pytrace=False)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if call.when == "teardown":
            ran, found, refused = item.stash[STARTED]
            reasons = [(kernel, first_line(reason)) for kernel, reason in self.gpu.refused[refused:]]
            counted = dict(self.gpu.ran - ran), [kernel for kernel, _ in self.gpu.found[found:]], reasons
            report.user_properties.append(("vlstm", counted))
        return report

    def pytest_runtest_logreport(self, report):
        for name, counted in report.user_properties if report.when == "teardown" else ():
            if name == "vlstm":
                ran, found, refused = counted
                self.ran.update(ran)
                self.found.update(found)
                self.skipped.update(tuple(one) for one in refused)

    def pytest_terminal_summary(self, terminalreporter):
        write = terminalreporter.write_line
        terminalreporter.section("vlstm: launches of Triton on the emulator")
        found, skipped = sum(self.found.values()), sum(self.skipped.values())
        write(f"{sum(self.ran.values())} launches of {len(self.ran)} kernels ran; findings: {found}; skipped: {skipped}")
        for kernel, count in sorted(self.ran.items()):
            findings = f", {self.found[kernel]} with findings" if self.found[kernel] else ""
            write(f"  {kernel}: {count}{findings}")
        for (kernel, reason), count in sorted(self.skipped.items()):
            write(f"  skipped {kernel}: {count} ({reason})")


def skip(kernel, reason):
    """What is done about a launch that cannot run: its test says nothing."""
    pytest.skip(f"{kernel} does not run on the emulator: {first_line(reason)}")


def first_line(reason):
    return reason.splitlines()[0] if reason else "no reason is known"
