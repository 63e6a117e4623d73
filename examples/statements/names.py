"""The words the sample ledger is made of: holders and shops in a dozen scripts.

Real customers are not called Alice. Each list is here because it breaks something that ASCII does not:
diacritics, right-to-left text, conjunct glyphs, letters outside the font, quotes and commas in a CSV field.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Script:
    """One script's words. `share` is its weight among the accounts."""

    name: str
    share: int
    given: tuple[str, ...]
    family: tuple[str, ...]
    shops: tuple[str, ...]


SCRIPTS = (
    Script(
        name="latin",
        share=8,
        given=(
            "Zoë",
            "Łukasz",
            "Éloïse",
            "Jürg",
            "Søren",
            "Çiğdem",
            "Nguyễn Thị",
            "Þórunn",
            "Iñaki",
            "Sinéad",
        ),
        family=(
            "Müller",
            "Wójcik",
            "Lefèvre",
            "Åkesson",
            "Yıldız",
            "Đặng",
            "Guðmundsdóttir",
            "O'Brien",
            "Ibáñez",
        ),
        shops=("Boulangerie Noël", "Bäckerei Grünwald", "Żabka Kraków", "Café São Jorge", "Smørrebrød & Øl"),
    ),
    Script(
        name="greek",
        share=2,
        given=("Ελένη", "Γιώργος", "Αθηνά", "Ξενοφών"),
        family=("Παπαδοπούλου", "Ωνάσης", "Θεοδωράκης"),
        shops=("Φούρνος Ψωμί", "Βιβλιοπωλείο Ίκαρος"),
    ),
    Script(
        name="cyrillic",
        share=2,
        given=("Людмила", "Олексій", "Ђорђе", "Щерба"),
        family=("Шевченко", "Јовановић", "Ёлкина", "Цветаева"),
        shops=("Пекарня «Хліб»", "Књижара Просвета"),
    ),
    Script(
        name="hebrew",
        share=1,
        given=("נועה", "יצחק"),
        family=("לוי", "בן־דוד"),
        shops=("מאפיית הצפון",),
    ),
    Script(
        name="arabic",
        share=2,
        given=("محمد", "فاطمة", "يوسف"),
        family=("العربي", "الصباح", "بن عيسى"),
        shops=("مخبز السلام", "مكتبة النور"),
    ),
    Script(
        name="devanagari",
        share=1,
        given=("क्षितिज", "अनन्या"),
        family=("शर्मा", "श्रीवास्तव"),
        shops=("चाय दुकान",),
    ),
    Script(
        name="thai",
        share=1,
        given=("สมชาย", "กัญญา"),
        family=("ศรีสุวรรณ", "แก้วมณี"),
        shops=("ร้านกาแฟ",),
    ),
    Script(
        name="georgian",
        share=1,
        given=("ნინო", "გიორგი"),
        family=("ბერიძე", "წერეთელი"),
        shops=("თონე",),
    ),
    Script(
        name="han",
        share=1,
        given=("小明", "静怡"),
        family=("欧阳", "鄭"),
        shops=("老城茶馆",),
    ),
    Script(
        name="japanese",
        share=2,
        given=("さくら", "ケンジ", "翔太"),
        family=("渡邊", "サトウ", "長谷川"),
        shops=("パン工房", "本屋さん"),
    ),
    Script(
        name="hangul",
        share=1,
        given=("지우", "민준"),
        family=("김", "황보"),
        shops=("서울 빵집",),
    ),
)

# Firms: the punctuation that a careless CSV reader trips over, and a letter that no text font has.
FIRMS = (
    'Smith, Jones & "Sons" Ltd',
    "Ångström; Ohm | Partners",
    "L’Œuvre d’Été S.à r.l.",
    "Cafe\u0301 de\u0301compose\u0301",  # combining accents instead of é
    "Kaffee ☕ & Kuchen 🍰 GmbH",
)
