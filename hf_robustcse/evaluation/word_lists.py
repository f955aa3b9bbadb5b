"""The words that the operators of robust sets exchange, written for this package.

What is also an ordinary word, or both a person and a place, is left out (Will, Rose, Washington, Jordan, Turkey), and
so are first names that men and women share. Places are grouped so that one is replaced by another of its own group.
"""

from __future__ import annotations

MALE_NAMES = tuple(
    """Aaron Alan Albert Andrew Anthony Barry Benjamin Bernard Brandon Brian Bruce Carl Charles Craig Daniel Darren
    David Dennis Derek Donald Douglas Edgar Edward Edwin Eric Ernest Felix Gary George Gerald Gordon Gregory Harold
    Henry Hugh Ian Jacob James Jason Jeffrey Jeremy Joel John Jonathan Joseph Justin Keith Kenneth Kevin Kyle
    Larry Leonard Malcolm Marcus Martin Matthew Michael Nathan Neil Nicholas Oliver Patrick Paul Peter Philip Ralph
    Raymond Richard Robert Roger Ronald Roy Samuel Simon Stephen Steven Stuart Theodore Thomas Timothy Todd Trevor
    Vincent Walter William Zachary""".split()
)
FEMALE_NAMES = tuple(
    """Abigail Alice Amanda Amelia Amy Andrea Angela Anna Barbara Beatrice Brenda Caroline Catherine Cheryl Christina
    Claire Cynthia Deborah Denise Diana Diane Donna Doris Dorothy Edith Eleanor Elizabeth Ellen Emily Emma Esther
    Hannah Heidi Helen Irene Isabel Jane Janet Jennifer Jessica Joan Joanna Judith Judy Julia Julie Karen Kathleen
    Kristen Laura Linda Lisa Louise Lucy Lydia Margaret Maria Marie Marilyn Martha Mary Megan Melissa Michelle Monica
    Naomi Natalie Nicole Nora Olivia Pamela Patricia Paula Rachel Rebecca Rita Ruth Samantha Sandra Sarah Sharon
    Sheila Sophie Stephanie Susan Sylvia Teresa Tina Ursula Vanessa Veronica Yvonne""".split()
)
SHORT_NAMES = {
    "Andrew": "Drew", "Anthony": "Tony", "Benjamin": "Ben", "Charles": "Chuck", "Deborah": "Debbie",
    "Dorothy": "Dot", "Edward": "Ted Ned Teddy", "Eleanor": "Nell Nora", "Elizabeth": "Liz Beth Betty Lisa",
    "Ernest": "Ernie", "Harold": "Hal", "Helen": "Nell Nellie", "Henry": "Harry Hank Hal", "James": "Jim Jimmy",
    "Jacob": "Jake", "John": "Jack", "Margaret": "Peggy Peg Daisy", "Martha": "Patty", "Mary": "Molly Polly",
    "Megan": "Meg", "Catherine": "Kate Katie Kathy Kitty", "Kathleen": "Cathy", "Patricia": "Trish Tricia",
    "Rebecca": "Becky Becca", "Richard": "Dick Rich", "Robert": "Bob Bobby", "Sarah": "Sally", "Theodore": "Ted Teddy",
    "Christina": "Tina", "William": "Bill Billy",
}  # fmt: skip
"""Short forms that begin otherwise than the name; the ones that begin alike are found by their letters."""

BIBLE = frozenset("angel apostle bible biblical blessed christ disciple gospel jesus prophet saint virgin".split())
"""Words that make a first name somebody whom all readers know: a row with one of them keeps its names."""
THINGS = frozenset(
    """Academy Act Airport Avenue Award Awards Bank Bay Beach Bridge Brothers Building Cathedral Center Centre Church
    City Club College Company Corp County Cup Disease Field Foundation Fort Gallery Garden Gardens Hall Hill Hospital
    Hotel House Hurricane Inc Institute Island Islands Jr Lake Law Library Memorial Mount Museum Park Peninsula Pike
    Place Port Prize River Road School Sons Square Sr Stadium Station Store Stores Street Syndrome Theater Theatre
    Tower Trophy University""".split()
)
"""What behind a first name makes a thing of it, such as `Albert Hall`, or a name shared by father and son."""

COUNTRIES = {
    "Europe": """France Germany Italy Spain Portugal Poland Hungary Austria Belgium Denmark Norway Sweden Finland Greece
    Romania Bulgaria Croatia Slovakia Switzerland Ukraine""".split(),
    "Asia": "Japan China India Thailand Vietnam Malaysia Indonesia Cambodia Nepal Mongolia Pakistan".split(),
    "Africa": "Kenya Nigeria Ghana Egypt Morocco Tunisia Ethiopia Uganda Zambia Senegal Algeria Tanzania".split(),
    "Latin America": "Brazil Argentina Peru Colombia Chile Bolivia Uruguay Ecuador Venezuela Cuba".split(),
}
CITIES = {
    "Europe": {
        "Paris": "France", "Lyon": "France", "Marseille": "France", "Berlin": "Germany", "Munich": "Germany",
        "Hamburg": "Germany", "Frankfurt": "Germany", "Madrid": "Spain", "Barcelona": "Spain", "Seville": "Spain",
        "Milan": "Italy", "Turin": "Italy", "Bologna": "Italy", "Vienna": "Austria", "Lisbon": "Portugal",
        "Warsaw": "Poland", "Krakow": "Poland", "Budapest": "Hungary", "Stockholm": "Sweden", "Oslo": "Norway",
        "Copenhagen": "Denmark", "Helsinki": "Finland", "London": "England", "Manchester": "England",
        "Liverpool": "England", "Edinburgh": "Scotland", "Glasgow": "Scotland", "Dublin": "Ireland",
        "Prague": "Czech", "Amsterdam": "Netherlands", "Zurich": "Switzerland",
    },
    "Asia": {
        "Tokyo": "Japan", "Osaka": "Japan", "Beijing": "China", "Shanghai": "China", "Seoul": "Korea",
        "Bangkok": "Thailand", "Hanoi": "Vietnam", "Mumbai": "India", "Delhi": "India", "Manila": "Philippines",
        "Jakarta": "Indonesia", "Karachi": "Pakistan", "Lahore": "Pakistan",
    },
    "Africa": {
        "Nairobi": "Kenya", "Cairo": "Egypt", "Lagos": "Nigeria", "Accra": "Ghana", "Kampala": "Uganda",
        "Dakar": "Senegal",
    },
    "Latin America": {
        "Lima": "Peru", "Bogota": "Colombia", "Caracas": "Venezuela", "Quito": "Ecuador", "Montevideo": "Uruguay",
        "Havana": "Cuba",
    },
    "North America": {
        "Chicago": "America", "Boston": "America", "Seattle": "America", "Denver": "America", "Dallas": "America",
        "Philadelphia": "America", "Atlanta": "America", "Houston": "America", "Detroit": "America",
        "Baltimore": "America", "Minneapolis": "America", "Nashville": "America", "Pittsburgh": "America",
        "Milwaukee": "America", "Cincinnati": "America", "Toronto": "Canada", "Montreal": "Canada",
        "Vancouver": "Canada",
    },
    "Oceania": {"Melbourne": "Australia", "Brisbane": "Australia", "Perth": "Australia", "Auckland": "Zealand"},
}  # fmt: skip
"""Group -> city -> a word for its country."""
KIN = {
    "France": "French", "Denmark": "Danish Dane Danes", "England": "Britain British UK U.K Kingdom",
    "Scotland": "Scottish Scots Britain British UK U.K Kingdom", "America": "US USA U.S U.S.A United States",
    "Netherlands": "Dutch Holland", "Philippines": "Filipino", "Portugal": "Brazilian", "Brazil": "Portuguese",
    "Czech": "Bohemia", "Ireland": "Irish",
}  # fmt: skip
"""Words for a country and its people that begin otherwise than the country."""
GEOGRAPHY = frozenset(
    """capital continent equator hemisphere island islands mainland peninsula europe european asia asian africa african
    america american""".split()
)
"""Words that tie a place to the map: a row with one of them keeps its places."""

NUMBER_WORDS = {
    word: number
    for number, word in enumerate(
        """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
        seventeen eighteen nineteen""".split()
    )
} | {
    word: number
    for number, word in zip(
        range(20, 100, 10), "twenty thirty forty fifty sixty seventy eighty ninety".split(), strict=True
    )
}
RELATIONS = frozenset(
    """half halves twice double doubled triple tripled quarter third thirds dozen dozens couple pair pairs trio duo
    twins triplets quartet quintet hundred hundreds thousand thousands million millions billion billions percent
    percentage average total sum""".split()
)
"""Words that say how numbers relate, or are numbers: a row with one of them keeps its numbers."""
TIME_UNITS = frozenset("second minute hour day night week weekend month year decade century".split())
UNITS = frozenset(
    """miles kilometers kilometres meters metres feet inches yards pounds kilos kilograms ounces grams tons tonnes
    gallons liters litres degrees acres hectares stars points thumbs dollars cents euros pesos francs marks times
    others thousands""".split()
)
"""Plurals that numbers stand before without counting things: measures, prices, marks and scores."""
IRREGULAR_PLURALS = frozenset("people men women children policemen firemen".split())
NOT_COUNTED = frozenset(
    """was has does goes is as its his this us yes perhaps always sometimes besides towards across various previous
    serious famous religious dangerous and or of in on at to by for from with the a an but than that which who were are
    be had have would will can could years""".split()
)
"""Words in -s that are no plurals, and words that end a noun phrase."""

FILLERS = (
    "This line was added later.",
    "See the notes below.",
    "The text ends here.",
    "This is the end of the text.",
    "This was copied from another page.",
    "Thank you for reading.",
    "Please see the next page.",
    "The next text begins below.",
    "More on the next page.",
    "This text was posted online.",
)
"""Sentences about the text itself, which say nothing for or against any statement in it."""

OTHER_WORDS = frozenset(
    """angels angles bards barely barley barn barns blot blots bolt bolts brads bran brans brunt burnt calm carb casual
    causal clam clod cold complaint compliant corps crab crops dairies dairy diaries diary ears eras farmed farming
    field filed files fired flies form framed framing fried from gaol girt goal grit lair liar lions loins magna
    manga marital martial perfect prefect rogue rouge sacred salt sang satin scared signing signs silver singing
    sings slat sliver snag snug spilt split stain sung tarp there three tired tires trail trails trap trial trials
    tried tries unite united untie untied warp wrap""".split()
)
"""Words that become another of these when two letters in their inside are swapped."""
