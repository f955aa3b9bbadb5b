"""Word lists that attacks need: stop-words, and letters that look alike."""

from __future__ import annotations

# Function words, by kind. Contractions are listed whole and without what tokenizers split off.
_PRONOUNS = """i me my myself we our ours ourselves you your yours yourself yourselves he him his himself she her hers
    herself it its itself they them their theirs themselves this that these those what which who whom"""
_VERBS = """am is are was were been being can
    aren't couldn't didn't doesn't don't hadn't hasn't haven't isn't mightn't mustn't needn't shan't shouldn't wasn't
    weren't won't wouldn't it's she's should've that'll you'd you'll you're you've"""
_SPLIT = "d ll o s t ve y ain aren couldn didn doesn don hadn hasn haven isn mightn mustn needn shan shouldn wasn weren won wouldn"  # noqa: E501
_SMALL = """a about above after again against all an and any as at before below between both but by down during for
    from here how if in into just more most no nor not now of off on once only or other out over same such than the
    then there through to too under until up when where while why with"""
_COMMON = f"{_PRONOUNS} {_VERBS} {_SPLIT} {_SMALL}".split()

STOPWORDS: frozenset[str] = frozenset(
    [
        *_COMMON,
        *"""be because did do does doing each few further had has have having m ma own re should so some very will
        he'd he'll he's i'd i'll i'm i've it'd it'll she'd she'll they'd they'll they're they've we'd we'll we're
        we've""".split(),
    ]
)
"""198 English function words: those of NLTK's list since 2024."""

TEXTFOOLER_STOPWORDS: frozenset[str] = frozenset(
    [
        *_COMMON,
        # where and when
        *"""across afterwards along already anywhere around back before beforehand behind beside besides beyond else
        elsewhere ever everywhere former formerly hence hereafter hereby herein hereupon latter latterly meanwhile never
        next nowhere onto sometime somewhere thence thereafter thereby therein thereupon throughout thru toward towards
        upon whence whenever whereafter whereas whereby wherein whereupon wherever whither within yet""".split(),
        # who and how many
        *"""another anyone anything either empty enough everyone everything first hundred least mine neither nobody
        none noone nothing one others something whatever whoever whole whose""".split(),
        # how words and clauses hang together
        *"""almost alone also although among amongst anyhow anyway cannot could due even except however indeed may
        moreover mostly must namely nevertheless otherwise per please somehow therefore thus unless used whether without
        would""".split(),
    ]
)
"""266 English function words: those that TextFooler leaves alone (Jin et al. 2019)."""

LOOKALIKES: dict[str, str] = dict(
    zip(
        "abcdefghijklmnopqrstuvwxyz0123456789-'",
        "ɑЬϲԁе𝚏ɡհіϳ𝒌ⅼｍոорԛⲅѕ𝚝սѵԝ×уᴢOlᒿƷᏎƼб𝟕Ȣ৭˗`",
        strict=True,
    )
)
"""Character -> one that looks like it (Unicode's confusables, the choice of TextAttack's TextBugger)."""
