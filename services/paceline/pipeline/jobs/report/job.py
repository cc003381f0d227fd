"""Run the job ``analyse`` and optionally ``verify``, and write their results into one HTML page."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from paceline.model.tls import TlsFiles
from paceline.pipeline.jobs.analyse import job as analyse
from paceline.pipeline.jobs.report.page import make_page
from paceline.pipeline.jobs.run import ExitCode, JobListener, JobResult, SilentListener
from paceline.pipeline.jobs.verify import job as verify


@dataclass(frozen=True, slots=True)
class ReportConfig:
    """Settings of the report."""

    bootstrap_servers: tuple[str, ...]
    output: str
    """Path of the page; missing folders are created."""
    with_verify: bool = False
    """Whether to compare replicas too, which reads every record on every broker."""
    tls: TlsFiles | None = None
    """Certificate files, at the same paths on every executor; None selects those of the driver's environment."""


def run(spark: Any, config: ReportConfig, listener: JobListener | None = None) -> JobResult:
    """Run the jobs and write the page; the verdict is negative when ``verify`` finds a difference between replicas."""
    listener = listener or SilentListener()
    analysed = analyse.run(spark, analyse.AnalyseConfig(config.bootstrap_servers, tls=config.tls), listener)
    verified = None
    if config.with_verify:
        verified = verify.run(spark, verify.VerifyConfig(config.bootstrap_servers, tls=config.tls), listener)
    page = make_page(analysed.summary, None if verified is None else verified.summary, datetime.now(UTC))
    output = Path(config.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(page, encoding="utf-8")
    summary = {"page": str(output), "events": analysed.summary["events"], "failovers": analysed.summary["failovers"]}
    if verified is not None:
        summary["differences"] = len(verified.summary["findings"])
    return JobResult(ExitCode.OK if verified is None else verified.exit_code, summary)
