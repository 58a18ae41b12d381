"""When our tokens count as the engine's."""

from headstart.prompt.token_agreement import FIRST_RUN, LONGEST_RUN, TokenAgreement, difference


def agreed():
    agreement = TokenAgreement()
    assert agreement.probed(None)
    return agreement


def runs_until_agreed(agreement):
    for count in range(1, LONGEST_RUN + 2):
        if agreement.counted(5, 5):
            return count
    raise AssertionError


def test_nothing_is_believed_before_it_was_checked():
    """And the reason says so."""
    agreement = TokenAgreement()
    assert not agreement.is_agreed
    assert "not compared" in agreement.reason


def test_probes_that_agree_are_enough():
    """Told once."""
    agreement = agreed()
    assert agreement.is_agreed
    assert agreement.reason == ""
    assert not agreement.probed(None)


def test_without_probes_a_run_of_counts_is_needed():
    """Of an engine without `/tokenize`."""
    assert runs_until_agreed(TokenAgreement()) == FIRST_RUN


def test_one_difference_ends_the_agreement():
    """The reason has both counts; another one changes nothing more."""
    agreement = agreed()
    assert agreement.counted(100, 98)
    assert not agreement.is_agreed
    assert "100" in agreement.reason
    assert "98" in agreement.reason
    assert not agreement.counted(100, 98)
    assert agreement.num_differences == 2


def test_agreeing_checks_bring_it_back():
    """Samples and counts count alike, and a difference starts the run anew."""
    agreement = agreed()
    agreement.counted(1, 2)
    for _ in range(FIRST_RUN - 1):
        assert not agreement.checked(None)
    agreement.counted(1, 2)
    assert runs_until_agreed(agreement) == FIRST_RUN


def test_each_relapse_doubles_the_run():
    """Up to a bound: what comes now and then must not make it flap."""
    agreement = agreed()
    lengths = []
    for _ in range(10):
        agreement.checked("sample: different")
        lengths.append(runs_until_agreed(agreement))
    assert lengths == [min(FIRST_RUN * 2**i, LONGEST_RUN) for i in range(10)]


def test_a_long_run_makes_an_old_relapse_forgotten():
    """The next one is a first one again."""
    agreement = agreed()
    for _ in range(3):
        agreement.counted(1, 2)
        runs_until_agreed(agreement)
    for _ in range(LONGEST_RUN):
        agreement.counted(5, 5)
    agreement.counted(1, 2)
    assert runs_until_agreed(agreement) == 2 * FIRST_RUN


def test_probes_do_not_excuse_what_requests_showed():
    """They agreed before, too. What a probe showed, a probe can take back."""
    agreement = agreed()
    agreement.counted(1, 2)
    assert not agreement.probed(None)
    assert not agreement.is_agreed
    other = TokenAgreement()
    assert not other.probed("probe tools: different")
    assert other.reason == "probe tools: different"
    assert other.probed(None)


def test_a_restart_makes_everything_unknown():
    """It may be another engine."""
    agreement = agreed()
    assert agreement.restarted()
    assert not agreement.is_agreed
    assert not agreement.restarted()
    assert agreement.probed(None)


def test_a_difference_is_told_without_the_ids():
    """They would be the prompt."""
    assert difference("probe", [1, 2], [1, 2]) is None
    told = difference("probe", [771, 882, 993], [771, 993])
    assert told == "probe: 3 tokens here, 2 by the engine, different from token 2 on"
    assert "from token 2 on" in difference("probe", [771], [771, 882])
