"""The word lists that lessons draw from: names, places, weather, and words of no importance.

Pure data, with one generator for names that nobody bears: a model that meets a new name in
every lesson learns to copy it instead of learning names by heart.
"""

from __future__ import annotations

import random


def _listed(words: str) -> tuple[str, ...]:
    return tuple(words.split())


CITIES = _listed(
    "Paris London Rome Berlin Madrid Vienna Lisbon Dublin Oslo Stockholm Helsinki Copenhagen "
    "Amsterdam Brussels Prague Warsaw Budapest Athens Zurich Geneva Munich Hamburg Milan Naples "
    "Venice Barcelona Moscow Kyiv Istanbul Cairo Tunis Lagos Nairobi Tokyo Kyoto Osaka Beijing "
    "Shanghai Seoul Delhi Mumbai Bangkok Hanoi Singapore Jakarta Manila Sydney Melbourne Auckland "
    "Boston Chicago Seattle Denver Austin Dallas Miami Toronto Montreal Lima Quito Santiago"
)

CITIES += ("New York", "San Francisco", "Los Angeles", "Mexico City", "Buenos Aires", "Hong Kong")

COUNTRIES = {
    "Paris": "France",
    "London": "England",
    "Rome": "Italy",
    "Berlin": "Germany",
    "Madrid": "Spain",
    "Vienna": "Austria",
    "Lisbon": "Portugal",
    "Dublin": "Ireland",
    "Oslo": "Norway",
    "Stockholm": "Sweden",
    "Helsinki": "Finland",
    "Copenhagen": "Denmark",
    "Brussels": "Belgium",
    "Prague": "Czechia",
    "Warsaw": "Poland",
    "Budapest": "Hungary",
    "Athens": "Greece",
    "Cairo": "Egypt",
    "Tokyo": "Japan",
    "Beijing": "China",
    "Seoul": "South Korea",
    "Lima": "Peru",
    "Ottawa": "Canada",
    "Washington": "the United States",
    "Mexico City": "Mexico",
    "New Delhi": "India",
    "Canberra": "Australia",
    "Moscow": "Russia",
    "Ankara": "Turkey",
    "Buenos Aires": "Argentina",
    "Santiago": "Chile",
    "Nairobi": "Kenya",
    "Kyiv": "Ukraine",
    "Bern": "Switzerland",
    "Amsterdam": "the Netherlands",
    "Hanoi": "Vietnam",
    "Bangkok": "Thailand",
    "Brasília": "Brazil",
}

PEOPLE = _listed(
    "Ada Alan Grace Linus Mary Alice Bob Carol Dave Eve Anna Ben Clara David Emma Frank Hanna "
    "Ivan Jane John Jason Karl Laura Maria Nina Oscar Paul Peter Rosa Sam Sara Tom Vera Yuki Zoe"
)

SKIES = _listed("sunny rainy cloudy windy foggy clear snowy stormy overcast mild warm cold")
COLOURS = {
    "red": "#ff0000",
    "green": "#00ff00",
    "blue": "#0000ff",
    "yellow": "#ffff00",
    "orange": "#ff8800",
    "purple": "#8800ff",
    "black": "#000000",
    "white": "#ffffff",
}
FRUIT = _listed("apple banana cherry grape lemon melon orange peach pear plum")
SIGNS = _listed(
    "Aquarius Pisces Aries Taurus Gemini Cancer Leo Virgo Libra Scorpio Sagittarius Capricorn"
)
DAYS = _listed("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")

NUMBERS = dict(
    enumerate(
        _listed(
            "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
            "fifteen sixteen seventeen eighteen nineteen twenty"
        )
    )
) | {30: "thirty", 40: "forty", 50: "fifty", 100: "one hundred"}

WORDS = _listed(
    "the a of and to in is it you that he was for on are with as his they be at one have this "
    "from or had by hot word but what some we can out other were all there when up use your how "
    "said an each she which do their time if will way about many then them write would like so "
    "these her long make thing see him two has look more day could go come did number sound no "
    "most people my over know water than call first who may down side been now find any new work "
    "part take get place made live where after back little only round man year came show every "
    "good me give our under name very through just form sentence great think say help low line "
    "differ turn cause much mean before move right boy old too same tell does set three want air "
    "well also play small end put home read hand port large spell add even land here must big "
    "high such follow act why ask men change went light kind off need house picture try us again "
    "animal point mother world near build self earth father head stand own page should country "
    "found answer school grow study still learn plant cover food sun four between state keep eye "
    "never last let thought city tree cross farm hard start might story saw far sea draw left "
    "late run while press close night real life few north book carry took science eat room friend "
    "began idea fish mountain stop once base hear horse cut sure watch color face wood main open "
    "seem together next white children begin got walk example ease paper group always music those "
    "both mark often letter until mile river car feet care second enough plain girl usual young "
    "ready above ever red list though feel talk bird soon body dog family direct pose leave song "
    "measure door product black short numeral class wind question happen complete ship area half "
    "rock order fire south problem piece told knew pass since top whole king space heard best hour "
    "better true during hundred five remember step early hold west ground interest reach fast verb "
    "sing listen six table travel less morning ten simple several vowel toward war lay against "
    "pattern slow center love person money serve appear road map rain rule govern pull cold notice "
    "voice unit power town fine certain fly fall lead cry dark machine note wait plan figure star "
    "box noun field rest correct able pound done beauty drive stood contain front teach week final "
    "server error file test code user agent model value string index token stream data request "
    "response system assistant tool function must never when using output input format path"
)

_SYLLABLES = _listed(
    "ba be bi bo da de di do fa fi ga go ka ke ki ko la le li lo ma me mi mo na ne ni no pa pe pi "
    "po ra re ri ro sa se si so ta te ti to va ve vi vo za ze zo bar dor fen gar hal ken lan mer "
    "nor pol rin sel tor ven wil zan ton ville burg stad field"
)


def invented(draw: random.Random) -> str:
    """A name that nobody bears."""
    return "".join(draw.choices(_SYLLABLES, k=draw.randint(2, 3))).capitalize()


def city(draw: random.Random) -> str:
    return draw.choice(CITIES) if draw.random() < 0.7 else invented(draw)


def person(draw: random.Random) -> str:
    return draw.choice(PEOPLE) if draw.random() < 0.5 else invented(draw)
